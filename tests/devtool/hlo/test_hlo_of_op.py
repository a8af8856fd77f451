"""`devtool hlo OP`: text, stages, JSON and picture of a case, and wrong arguments."""

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from devtool.hlo.lowered import inspect_case, load_cases, select_case
from devtool.hlo.svg import MOST_NODES, draw
from tests.conftest import ROOT


def test_hlo_shows_the_custom_call(tree):
    result = tree.run("hlo", "simple_add", "--case", "bf16-3x5")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("HloModule ") and "\033" not in result.stdout
    assert 'custom_call_target="xla_gpu_simple_add"' in result.stdout and "bf16[3,5]" in result.stdout
    assert result.stderr.endswith("hlo: 1 custom call: xla_gpu_simple_add\n")


@pytest.mark.slow
def test_hlo_highlights_it_on_a_terminal(tree):
    if shutil.which("script") is None:
        pytest.skip("needs `script`")
    command = ["script", "-qec", " ".join(tree.command("hlo", "simple_add")), "/dev/null"]
    environment = tree.environment(TERM="xterm-256color")
    output = subprocess.run(command, cwd=tree.root, env=environment, capture_output=True, text=True).stdout
    highlighted = [line for line in output.splitlines() if "\033[1;36m" in line]
    assert len(highlighted) == 1 and "xla_gpu_simple_add" in highlighted[0]


def test_hlo_lists_the_cases(tree):
    result = tree.run("hlo", "simple_add", "--list")
    assert "bf16-3x5\tfewer elements than one vector\n" in result.stdout


def test_hlo_takes_the_first_case_that_computes_something():
    """XLA drops a call without elements: an op whose first case is empty showed 0 custom calls."""
    cases = {case.name: case for case in load_cases("simple_add")}
    empty, other = cases["f32-empty"], cases["f32-3x5"]
    assert select_case("simple_add", [empty, other], None) is other
    assert select_case("simple_add", [empty], None) is empty
    assert select_case("simple_add", [other, empty], empty.name) is empty
    in_place = load_cases("reshape_and_cache")  # it returns nothing
    assert select_case("reshape_and_cache", in_place, None) is in_place[0]


def test_hlo_of_an_unknown_case(tree):
    result = tree.run("hlo", "simple_add", "--case", "bf16-3x6")
    assert result.returncode == 2
    assert "hlo: --case: expected one of cases.py (" in result.stderr and ", got bf16-3x6" in result.stderr
    assert result.stderr.endswith("\n\nhint: did you mean bf16-3x5?\n")


def test_hlo_of_an_op_without_cases(tree):
    tree.tiny_op("tiny")
    (tree.kernels / "tiny/__init__.py").touch()
    result = tree.run("hlo", "tiny")
    shutil.rmtree(tree.kernels / "tiny")
    assert result.returncode == 1
    assert result.stderr.endswith(
        "hlo: tiny: expected kernels/tiny/cases.py, got none\n\nhint: copy kernels/simple_add/cases.py and adapt it\n"
    )


@pytest.mark.slow
def test_hlo_of_a_further_op_of_a_folder(tree):
    """Its cases are in a separate list, and its name does not contain the folder's name."""
    folder = tree.kernels / "simple_add"
    python, cases = (folder / name for name in ("simple_add.py", "cases.py"))
    texts = python.read_text(), cases.read_text()
    signature = "def minus(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:"
    op = f"\n\n@custom_op(library='simple_add')\n{signature}\n    return a - b\n"
    try:
        python.write_text(texts[0] + op)
        without = tree.run("hlo", "minus", "--list")
        cases.write_text(texts[1] + "\n\nMINUS_CASES = CASES[1:2]\n")
        listed = tree.run("hlo", "minus", "--list")
        folders = tree.run("hlo", "simple_add", "--list")
    finally:
        python.write_text(texts[0]), cases.write_text(texts[1])
    assert without.returncode == 1
    expected = "hlo: minus: expected a case in MINUS_CASES of kernels/simple_add/cases.py, got none\n\nhint: "
    assert without.stderr.endswith(f"{expected}kernels/simple_add/cases.py is an example\n")
    assert listed.stdout.splitlines() == folders.stdout.splitlines()[1:2]


@pytest.mark.parametrize(
    "name",
    [
        *("fused_decoder_layer_rotary", "paged_attention_lse", "rotary_embedding_inplace"),
        *("rms_norm.triton", "paged_attention.flashinfer"),
    ],
)
def test_hlo_calls_a_further_op_or_implementation(name):
    (case, *_) = load_cases(name)
    _, seen = inspect_case(name, case)
    assert [call.target for call in seen.calls()] == [f"xla_gpu_{name.replace('.', '_')}"]


@pytest.mark.slow
def test_hlo_of_the_folder_of_an_implementation():
    command = [sys.executable, "-P", "-m", "devtool", "hlo", "rms_norm_triton"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr.endswith("hlo: 1 custom call: xla_gpu_rms_norm_triton\n")


SVG = "{http://www.w3.org/2000/svg}"


def test_hlo_says_what_xla_made_of_the_op(tree):
    result = tree.run("hlo", "simple_add", "--case", "f32-3x5")
    _, _, report = result.stdout.partition("\n\nSyncTensorsGraph")
    assert " on CPU: 1 custom call, 0 copies\n" in report
    assert "operand 0  f32[3,5]{1,0}  argument " in report and "alpha = " in report and "  memory    " in report


def test_hlo_at_each_stage(tree):
    texts = {}
    for stage in ("stablehlo", "after"):
        result = tree.run("hlo", "simple_add", "--case", "f32-3x5", "--stage", stage)
        assert result.returncode == 0, result.stderr
        assert result.stderr.endswith("hlo: 1 custom call: xla_gpu_simple_add\n")
        texts[stage] = result.stdout
    assert (
        texts["stablehlo"].startswith("module @") and "stablehlo.custom_call @xla_gpu_simple_add" in texts["stablehlo"]
    )
    assert texts["after"].startswith("HloModule ") and "is_scheduled=true" in texts["after"]


@pytest.mark.slow
def test_hlo_diff(tree):
    result = tree.run("hlo", "simple_add", "--diff")
    lines = result.stdout.splitlines()
    assert lines[0].endswith(", before optimisation") and lines[1].endswith(", after optimisation")
    assert any(line.startswith("+HloModule") for line in lines) and "metadata" not in result.stdout


@pytest.mark.slow
def test_hlo_json(tree):
    result = tree.run("hlo", "simple_add", "--case", "f32-3x5", "--json")
    data = json.loads(result.stdout)
    (call,) = data["modules"][0]["calls"]
    assert (data["device"], call["target"]) == ("CPU", "xla_gpu_simple_add")
    assert data["modules"][0]["memory"]["arguments"] == 2 * 3 * 5 * 4


def test_hlo_graph(tree, tmp_path):
    """Well-formed, with the custom call marked by its class; everything is inside the picture."""
    path = tmp_path / "graph.svg"
    result = tree.run("hlo", "simple_add", "--case", "f32-3x5", "--graph", str(path))
    assert result.returncode == 0 and result.stdout == ""
    assert f"hlo: wrote {path}\n" in result.stderr
    root = ElementTree.parse(path).getroot()
    calls = [group for group in root.iter(f"{SVG}g") if group.get("class") == "call"]
    assert [text.text for text in calls[0].iter(f"{SVG}text")] == ["xla_gpu_simple_add", "f32[3,5]{1,0}"]
    assert len(calls) == 1 and len([g for g in root.iter(f"{SVG}g") if g.get("class") == "end"]) == 3
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter(f"{SVG}rect"):
        assert 0 <= float(rect.get("x")) <= width - float(rect.get("width"))
        assert 0 <= float(rect.get("y")) <= height - float(rect.get("height"))


def chain(length: int) -> SimpleNamespace:
    """A module with that many steps and a custom call in the middle."""
    lines = ["  %x0 = f32[2]{0} parameter(0)"]
    for i in range(1, length):
        call = 'custom-call(%x{}), custom_call_target="a<b"' if i == length // 2 else "sine(%x{})"
        lines.append(f"  %x{i} = f32[2]{{0}} {call.format(i - 1)}")
    lines[-1] = lines[-1].replace("%", "ROOT %", 1)
    text = "ENTRY %main (x0: f32[2]) -> f32[2] {\n" + "\n".join(lines) + "\n}\n"
    return SimpleNamespace(name="chain", before=text, after=text, copies=())


@pytest.mark.parametrize("length", [2, MOST_NODES - 1, 5000])
def test_picture_of_a_long_module(length):
    """A large module is shown near its custom calls, with the number of omitted instructions."""
    text, left_out = draw([chain(length)], "after")
    drawn = list(ElementTree.fromstring(text).iter(f"{SVG}rect"))
    assert len(drawn) == (length + 1 if length < MOST_NODES else 7)
    assert left_out == (0 if length < MOST_NODES else length + 1 - 7)
    assert "a&lt;b" in text


def test_picture_of_nothing():
    text, left_out = draw([], "after")
    assert ElementTree.fromstring(text).tag == f"{SVG}svg" and left_out == 0


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        (["no_script.py"], "hlo: SCRIPT: expected a Python file, got none at no_script.py\n\nhint: "),
        (["simple_ad"], "hlo: OP: expected a folder of kernels/ (simple_add), got simple_ad\n\nhint: did you mean"),
        (["simple_add", "--diff", "--json"], "--stage, --diff and --json exclude each other"),
        (["simple_add", "extra"], "unexpected extra argument (extra): an op takes none"),
        (["script.py", "--list"], "a script has no cases"),
        (["simple_add", "--stage", "later"], "'later' is not one of 'stablehlo', 'before', 'after'"),
    ],
)
def test_hlo_misused(tree, arguments, got):
    result = tree.run("hlo", *arguments)
    assert result.returncode == 2 and got in result.stderr and result.stdout == ""


def test_hlo_graph_that_cannot_be_written(tree, tmp_path):
    graph = tmp_path / "none/graph.svg"
    result = tree.run("hlo", "simple_add", "--graph", str(graph))
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(
        f"hlo: --graph: expected a file in a folder that exists, got {graph}\n\nhint: mkdir"
    )
