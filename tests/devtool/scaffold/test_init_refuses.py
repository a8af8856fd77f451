"""What devtool refuses to write, and repositories and places that it cannot work in."""

import json
import re
from pathlib import Path

import pytest

from devtool.errors import DevtoolError
from devtool.repository import find_repository, write_site
from tests.conftest import ROOT
from tests.devtool.scaffold.test_init import made, run
from tests.small_tree import mounted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Mine"], "init: NAME: expected lower-case letters, digits, - and _, a letter first, got 'Mine'"),
        (["ümlaut"], "init: NAME: expected lower-case letters, digits, - and _, a letter first, got 'ümlaut'"),
        (["torch"], "init: NAME: expected a name that Python and pyxla do not use, got 'torch'"),
        (["json"], "init: NAME: expected a name that Python and pyxla do not use, got 'json'"),
        (
            ["mine", "--namespace", "aten"],
            "init: --namespace: expected a namespace that torch does not have, got 'aten'",
        ),
        (
            ["mine", "--namespace", "torch_xla"],
            "init: --namespace: expected a namespace that torch does not have, got 'torch_xla'",
        ),
        (["mine", "--namespace", "9a"], "init: --namespace: expected lower-case letters, digits and _, a letter first"),
        (["full"], "init: NAME: expected a folder that does not exist or is empty, got "),
    ],
)
def test_init_refuses(tmp_path, arguments, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    result = run(tmp_path, "init", *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(message) and "\nhint: " in result.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "file"]


def test_init_where_nothing_can_be_written():
    result = run(Path("/proc"), "init", "mine")
    assert result.returncode == 1
    assert result.stderr.startswith("devtool: ") and "Traceback" not in result.stderr


def asking(*dependencies: str) -> str:
    """The pyproject.toml of a repository with these dependencies."""
    text = f'[project]\nname = "mine"\ndependencies = {json.dumps(dependencies)}\n'
    return text + '[project.entry-points."pyxla.kernels"]\nmine = "mine"\n'


PYPROJECT = '[project]\nname = "mine"\n[project.entry-points."pyxla.kernels"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PYPROJECT + 'aten = "mine"\n', "namespace: expected a namespace that torch does not have, got 'aten'"),
        (PYPROJECT + 'mine = "not-a-name"\n', "package: expected a name that Python imports, got 'not-a-name'"),
        (PYPROJECT, "expected one entry point pyxla.kernels, got {}"),
        (PYPROJECT + 'a = "a"\nb = "b"\n', "expected one entry point pyxla.kernels, got {'a': 'a', 'b': 'b'}"),
        ("pyxla.kernels = [", "expected a table with the entry point pyxla.kernels, got "),
        (PYPROJECT + 'mine = "mine"\n', "devtool: repository: expected the folder kernels in "),
        (
            asking("pyxla>=99"),
            "devtool: pyxla: expected pyxla>=99, as FOLDER/pyproject.toml asks for, got 0.1.0 beside ",
        ),
        (asking("pyxla[devtool]<0.1,>=0.0.1"), "expected pyxla[devtool]<0.1,>=0.0.1, as "),
        (asking("pyxla >> 1"), "dependencies: expected a version of pyxla as pip takes it, got 'pyxla >> 1': "),
    ],
)
def test_repository_that_devtool_cannot_work_in(tmp_path, text, message):
    (tmp_path / "pyproject.toml").write_text(text)
    if "dependencies" in text:
        (tmp_path / "kernels").mkdir()
    before = sorted(tmp_path.rglob("*"))
    result = run(tmp_path, "list")
    assert result.returncode == 1
    assert message.replace("FOLDER", str(tmp_path)) in result.stderr and "\nhint: " in result.stderr
    assert "Traceback" not in result.stderr and sorted(tmp_path.rglob("*")) == before


def test_dependencies_that_this_pyxla_meets(tmp_path):
    (tmp_path / "pyproject.toml").write_text(asking("pyxla>=0.0.1", "pyxla-more>=99"))
    (tmp_path / "kernels").mkdir()
    assert find_repository(tmp_path).package == "mine"


def test_one_repository_inside_another(tmp_path):
    outer = made(tmp_path, "outer")
    inner = made(outer, "inner")
    result = run(inner, "list")
    assert f"devtool: repository: expected one, got {inner} inside {outer}" in result.stderr


def test_no_repository_here(tmp_path):
    """Without a repository devtool works on the checkout that it belongs to; an installed one belongs to none."""
    with pytest.raises(DevtoolError) as error:
        find_repository(tmp_path)
    assert error.value.message.startswith("devtool: repository: expected kernels/ and a pyproject.toml that declares")
    assert str(tmp_path) in error.value.message and error.value.message.endswith("devtool init my-kernels")
    assert find_repository(tmp_path, otherwise=ROOT).package == "pyxla_kernels"


def test_new_op_that_another_package_of_the_namespace_has(tmp_path):
    own, site = made(tmp_path, "mine", "--namespace", "shared"), tmp_path / "site"
    (site / "their_kernels/taken").mkdir(parents=True)
    (site / "their_kernels/__init__.py").touch()
    write_site(site, {"name": "theirs", "entry-points": {"pyxla.kernels": {"shared": "their_kernels"}}}, {})
    result = run(own, "new-op", "taken", PYTHONPATH=str(site))
    got = f"'taken', which their_kernels has in the same namespace ({site}/their_kernels/taken)"
    assert result.returncode == 2
    assert result.stderr == (
        f"new-op: NAME: expected a name that is free, got {got}\n\n"
        "hint: take another name, or uninstall their_kernels\n"
    )
    assert [path.name for path in (own / "kernels").iterdir() if path.is_dir()] == ["scaled"]
    assert run(own, "new-op", "free", PYTHONPATH=str(site)).returncode == 0


def test_read_only_repository(tmp_path):
    """What only reads works; what writes says why it cannot, and leaves nothing half written."""
    place = tmp_path / "disk"
    with mounted(place, "size=4m") as libc:
        root = made(place, "mine")
        assert run(root, "list").returncode == 0
        remount, read_only = 0x20, 0x1
        assert libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", remount | read_only, b"") == 0
        before = sorted(place.rglob("*"))
        assert run(root, "list").returncode == 0
        for command in (["new-op", "added"], ["build"], ["wheel"], ["test"], ["init", "inner"]):
            result = run(place if command[0] == "init" else root, *command)
            assert result.returncode == 1 and result.stdout == "", command
            assert re.match(r"\w+: the folder is read-only \(Read-only file system: .*\)\n\nhint: ", result.stderr)
            assert "Traceback" not in result.stderr
        assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("place", ["build", "dist", "build/lib"])
def test_file_where_a_folder_must_be(tmp_path, place):
    root = made(tmp_path, "mine")
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).write_text("a file\n")
    result = run(root, "wheel" if place == "dist" else "build")
    assert result.returncode in (1, 2) and result.stdout == ""
    assert place in result.stderr and "\nhint: " in result.stderr and "Traceback" not in result.stderr
    assert (root / place).read_text() == "a file\n"


def test_path_with_a_colon(tmp_path):
    """PYTHONPATH, by which the processes that devtool starts find the package, cannot name it."""
    root = made(tmp_path, "mine").rename(tmp_path / "a:b")
    result = run(root, "build")
    assert result.returncode == 1
    message = f"devtool: repository: expected a path that PYTHONPATH can name, got a colon in {root}"
    assert result.stderr.startswith(f"{message}\n\nhint: ") and not (root / "build").exists()
