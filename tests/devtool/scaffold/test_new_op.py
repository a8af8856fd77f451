"""`devtool new-op`: names that it takes and refuses; it writes all files or none."""

import re
import shutil

import pytest

from devtool.scaffold.names import op_problem
from tests.conftest import ROOT
from tests.devtool_tree import Tree, tree_on_a_bad_disk

MY_NORM = "(Tensor x, Tensor weight, float eps=1e-6) -> Tensor"
FILES = ["__init__.py", "cases.py", "test_{0}.py", "{0}.cu", "{0}.h", "{0}.py", "{0}_ffi.cc", "{0}_host.cc"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Tree(tmp_path_factory.mktemp("new_op"))


def files_of(name: str) -> list[str]:
    return sorted(f"kernels/{name}/{file.format(name)}" for file in FILES)


def test_writes_the_folder_and_says_what_to_edit_next(tree):
    result = tree.run("new-op", "told")
    shutil.rmtree(tree.kernels / "told")
    assert result.stdout.splitlines() == files_of("told")
    steps = re.findall(r"^  (\d)\. (.*)$", result.stderr, re.MULTILINE)
    assert [number for number, _ in steps] == [str(i) for i in range(1, 10)]
    for name in ("told.py", "told.h", "told_host.cc", "told.cu", "told_ffi.cc", "cases.py"):
        assert any(f"kernels/told/{name}" in step for _, step in steps)


def test_dry_run_prints_the_files_and_writes_nothing(tree):
    before = sorted(tree.root.rglob("*"))
    result = tree.run("new-op", "dry", MY_NORM, "--dry-run")
    assert result.returncode == 0 and sorted(tree.root.rglob("*")) == before
    shown = re.findall(r"^==> (.*) <==$", result.stdout, re.MULTILINE)
    assert shown == files_of("dry")
    assert ".Arg<ffi::AnyBuffer>()  // weight" in result.stdout and '.Attr<double>("eps")' in result.stdout
    written = tree.new_op("dry", MY_NORM)
    assert all(path.read_text() in result.stdout for path in written.iterdir())
    shutil.rmtree(written)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("class", "no keyword of Python"),
        ("template", "C++ does not reserve"),
        ("a__b", "C++ does not reserve"),
        ("../escape", "lower case letters"),
        ("a/b", "lower case letters"),
        ("/absolute", "lower case letters"),
        ("..", "lower case letters"),
        ("", "lower case letters"),
        ("Softmax", "lower case letters"),
        ("9lives", "lower case letters"),
        ("_private", "lower case letters"),
        ("with-dash", "lower case letters"),
        ("naïve", "lower case letters"),
        ("x" * 65, "at most 64 characters"),
        ("toolchain", "build does not use"),
        *((word, "build does not use") for word in ("test", "all", "install", "clean", "help", "devtool")),
        ("default", "C++ does not reserve"),
        ("torch", "no library of torch"),
        ("name", "own files do not use"),
        ("test_it", "without test_"),
        ("norm_functional", "without _functional"),
    ],
)  # fmt: skip
def test_refuses_bad_names(tree, name, expected):
    before = sorted(tree.root.rglob("*"))
    result = tree.run("new-op", "--", name)
    assert result.returncode == 2
    assert result.stderr.startswith("new-op: NAME: expected ") and expected in result.stderr
    assert f", got {name!r}\n\nhint: devtool new-op my_op\n" in result.stderr
    assert sorted(tree.root.rglob("*")) == before


@pytest.mark.parametrize("there", ["op", "empty folder", "file", "dangling link"])
def test_never_overwrites(tree, there):
    name = "simple_add" if there == "op" else "taken"
    path = tree.kernels / name
    if there == "empty folder":
        path.mkdir()
    elif there == "file":
        path.write_text("mine")
    elif there == "dangling link":
        path.symlink_to("nowhere")
    result = tree.run("new-op", name)
    assert result.returncode == 2
    assert f"new-op: NAME: expected a name that is free, got '{name}': {path} exists" in result.stderr
    if there == "file":
        assert path.read_text() == "mine"
    if name == "taken":
        shutil.rmtree(path) if there == "empty folder" else path.unlink()


def test_bad_schema_writes_nothing(tree):
    before = sorted(tree.root.rglob("*"))
    result = tree.run("new-op", "unwritten", "(Tensor x, Tenso y) -> Tensor")
    assert result.returncode == 2
    assert "\n  (Tensor x, Tenso y) -> Tensor\n             ^^^^^\n" in result.stderr
    assert sorted(tree.root.rglob("*")) == before


def test_folder_that_appears_meanwhile_stays(tree, monkeypatch):
    from devtool import project
    from devtool.errors import DevtoolError
    from devtool.scaffold import op_folder
    from devtool.scaffold.schema import parse_schema
    from devtool.scaffold.stub import Op

    monkeypatch.setattr(project, "root", lambda: tree.root)
    monkeypatch.setattr(
        op_folder,
        "_format",
        lambda folder, root: (tree.kernels / "raced").mkdir() or (tree.kernels / "raced/x").touch(),
    )
    with pytest.raises(DevtoolError, match="expected a name that is free, got 'raced'"):
        op_folder.write_op(Op("raced", parse_schema("(Tensor x) -> Tensor")))
    assert [path.name for path in (tree.kernels / "raced").iterdir()] == ["x"]
    assert not list(tree.kernels.glob(".new-*"))
    shutil.rmtree(tree.kernels / "raced")


@pytest.mark.parametrize("what", ["full", "read-only"])
def test_disk_that_takes_nothing_leaves_nothing_behind(tmp_path, what):
    # Four memory pages are free: the first files fit, the others do not.
    with tree_on_a_bad_disk(tmp_path, what, free=4 * 4096) as tree:
        before = sorted(tree.kernels.iterdir())
        result = tree.run("new-op", "unlucky", PYTHONDONTWRITEBYTECODE="1")
        assert sorted(tree.kernels.iterdir()) == before
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert ("the disk is full" if what == "full" else "the folder is read-only") in result.stderr


def test_names_that_the_build_has_already_are_refused():
    """An op named set_device would break CMake; for triton_kernels, Triton's file would overwrite the Python file."""
    targets = re.findall(r"add_library\((\w+)", "".join(p.read_text() for p in ROOT.glob("pyxla/*/CMakeLists.txt")))
    packages = re.search(r"reserved = \[(.*)\];", (ROOT / "nix/ops.nix").read_text())[1]
    files = [path.name.partition(".")[0] for path in ROOT.glob("devtool/scaffold/template/*/[a-z]*.py.jinja")]
    names = [*targets, *re.findall(r"\w+", packages), *files]
    assert {"set_device", "docs", "triton_kernels"} <= set(names)
    assert [name for name in names if op_problem(name) is None] == []


def test_existing_ops_have_names_that_new_op_takes():
    ops = [path.parent.name for path in ROOT.glob("kernels/*/*_ffi.cc")]
    assert ops and [op for op in ops if op_problem(op)] == []
