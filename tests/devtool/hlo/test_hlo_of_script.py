"""`devtool hlo script.py`: the modules of a script, its own output, and scripts that fail."""

import json

import pytest

SCRIPT = """
import sys, torch, torch_xla
x = torch.arange(12.0).reshape(3, 4).to(torch_xla.device())
step = torch.compile(lambda x: torch.ops.xla_gpu.simple_add(x, x).relu(), backend="openxla")
print("printed by the script", sys.argv[1:], __name__)
print((step(x) + torch.ops.xla_gpu.simple_add(x, x, 2.0)).sum().item())
"""


def script(tmp_path, text: str):
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


def test_hlo_of_a_script(tree, tmp_path):
    """The script's own output goes to stderr; XLA compiles nothing extra."""
    path = script(tmp_path, SCRIPT + 'import os; os.system("echo said by a child")\n')
    result = tree.run("hlo", str(path), "--json", "--", "--epochs", "3", PJRT_DEVICE="CPU")
    assert result.returncode == 0, result.stderr
    assert "printed by the script ['--epochs', '3'] __main__\n" in result.stderr
    assert "said by a child\n" in result.stderr
    data = json.loads(result.stdout)
    targets = [call["target"] for module in data["modules"] for call in module["calls"]]
    assert targets == ["xla_gpu_simple_add"] * 2
    assert all(module["before"].startswith("HloModule ") for module in data["modules"])


@pytest.mark.slow
def test_hlo_of_a_script_twice_in_a_folder_of_the_user_s(tree, tmp_path):
    """The second run's modules have the same names as the first run's."""
    path, folder = script(tmp_path, SCRIPT), tmp_path / "modules"
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    for _ in range(2):
        result = tree.run("hlo", str(path), PJRT_DEVICE="CPU", XLA_FLAGS=flags)
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("xla_gpu_simple_add") >= 2
    assert list(folder.iterdir())


RAISES = """def inner():
    raise ValueError("mine")


import torch

inner()
"""


def test_hlo_of_a_script_that_raises(tree, tmp_path):
    """The traceback is the same as from `python script.py`, without frames of devtool."""
    path = script(tmp_path, RAISES)
    result = tree.run("hlo", str(path))
    assert result.returncode == 1 and result.stdout == ""
    trace, _, own = result.stderr.partition("ValueError: mine\n")
    assert trace == (
        f'Traceback (most recent call last):\n  File "{path}", line 7, in <module>\n    inner()\n'
        f'  File "{path}", line 2, in inner\n    raise ValueError("mine")\n'
    )
    assert own.startswith(f"hlo: {path}: the script raised ValueError (see above)\n\nhint: ")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("print('no XLA')", "expected a script that computes on XLA, got one that left XLA nothing to do"),
        ("import torch, torch_xla\nx = torch.ones(3, device=torch_xla.device()) + 1", "left XLA nothing to do"),
        ("import sys; sys.exit(3)", "the script failed (exit status 3)"),
        ("import sys; sys.exit('words')", "words\nhlo: "),
        ("def f(:", "SyntaxError: invalid syntax\nhlo: "),
    ],
)
def test_hlo_of_a_script_that_shows_nothing(tree, tmp_path, text, got):
    result = tree.run("hlo", str(script(tmp_path, text)), PJRT_DEVICE="CPU")
    assert result.returncode == 1 and got in result.stderr and "devtool/hlo/lowered.py" not in result.stderr
    assert "\n\nhint: " in result.stderr
