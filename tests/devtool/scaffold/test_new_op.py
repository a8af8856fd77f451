"""`devtool new-op`: names; all files or none; its folder builds, passes its tests, and fails them after a change."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from devtool.scaffold.names import argument_problem, op_problem
from tests.conftest import ROOT
from tests.devtool_tree import Tree, tree_on_a_bad_disk

ALL_KINDS = (
    "(Tensor? w, Tensor(a!) cache, Tensor x, bool flag, int[] d, float[] g, int n, int? k=None, float? f=2, "
    "bool b=True, str s='x', Tensor? late=None) -> (Tensor weights, Tensor ids)"
)
# Name -> schema; None is the default schema. Together they cover every kind, with and without defaults.
SCHEMAS = {
    "plain": None,
    "my_norm": "(Tensor x, Tensor weight, float eps=1e-6) -> Tensor",
    "everything": ALL_KINDS,
    "only_in_place": "(Tensor(a!) out, Tensor update) -> ()",
    "two_in_place": "(Tensor x, Tensor(a!) key_cache, Tensor(b!) value_cache, int start) -> Tensor",
    "named": "(Tensor x) -> Tensor y",
    # An op and arguments that are named like functions of C and like names in the templates.
    "exp": "(Tensor exp, Tensor? new_out, Tensor out_0, int? index, str mode) -> (Tensor, Tensor, Tensor)",
}
FILES = ["__init__.py", "cases.py", "test_{0}.py", "{0}.cu", "{0}.h", "{0}.py", "{0}_ffi.cc", "{0}_host.cc"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Tree(tmp_path_factory.mktemp("new_op"))


def new_op(tree: Tree, name: str, schema: str | None = None) -> Path:
    result = tree.run("new-op", name, *([schema] if schema else []))
    assert result.returncode == 0, result.stderr
    return tree.kernels / name


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
    result = tree.run("new-op", "dry", SCHEMAS["my_norm"], "--dry-run")
    assert result.returncode == 0 and sorted(tree.root.rglob("*")) == before
    shown = re.findall(r"^==> (.*) <==$", result.stdout, re.MULTILINE)
    assert shown == files_of("dry")
    assert ".Arg<ffi::AnyBuffer>()  // weight" in result.stdout and '.Attr<double>("eps")' in result.stdout
    written = new_op(tree, "dry", SCHEMAS["my_norm"])
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


def words_of(folder: Path) -> list[str]:
    """The identifiers that an op's files contain and that an argument can have."""
    words = set()
    for path in folder.iterdir():
        if path.name == "cases.py" or path.name.startswith("test_"):
            continue  # In this file the arguments' names are strings.
        comment = r"#.*" if path.suffix == ".py" else r"//.*|^#\s*include.*"
        text = re.sub(rf'{comment}|"""(.|\n)*?"""|"[^"\n]*"', "", path.read_text(), flags=re.MULTILINE)
        words |= set(re.findall(r"\b[a-z]\w*\b", text))
    return sorted(word for word in words if argument_problem(word) is None)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A tree with an op for each schema, and `names`, whose arguments have names that the templates use."""
    tree = Tree(tmp_path_factory.mktemp("written"))
    for name, schema in SCHEMAS.items():
        new_op(tree, name, schema)
    words = words_of(tree.kernels / "everything")
    assert 40 < len(words) <= 64
    kinds = ("Tensor", "int", "float", "Tensor?")
    arguments = ", ".join(f"{kinds[i % 4]} {word}" for i, word in enumerate(words))
    new_op(tree, "names", f"({arguments}) -> (Tensor, Tensor)")
    return tree


@pytest.fixture(scope="module")
def tested(written):
    """The results of these ops' tests: one run, because most of its time is torch's import."""
    # Every case lazily; the other checks where schemas differ, not sizes; one case of `names`: it has many arguments.
    rest = "bad_input or f32-3x5 or bf16-3x5 or absent or other"
    select = f"(not test_names and (check_lazy or {rest})) or (test_names and f32-3x5)"
    return written.run("test", *SCHEMAS, "names", "--all", "--", "-k", select)


def test_files_are_laid_out_and_linted(written):
    folders = [str(written.kernels / name) for name in SCHEMAS]
    scripts = Path(sysconfig.get_path("scripts"))
    for command in (["ruff", "check", "--no-cache"], ["ruff", "format", "--no-cache", "--check"]):
        subprocess.run([scripts / command[0], *command[1:], *folders], cwd=written.root, check=True)
    cpp = [str(path) for path in written.kernels.glob("*/*") if path.suffix in (".h", ".cc", ".cu")]
    subprocess.run([scripts / "clang-format", "--dry-run", "-Werror", *cpp], cwd=written.root, check=True)


def test_results_have_their_names_in_every_file(written):
    """In the docstring, the fake function, the C++ parameters, their checks and the kernels; and none is made up."""
    folder = written.kernels / "everything"
    texts = {path.name.removeprefix("everything"): path.read_text() for path in folder.iterdir()}
    assert '@custom_op(mutates=["cache"], results=["weights", "ids"])' in texts[".py"]
    for name in ("weights", "ids"):
        assert f"        {name}: as cache; replace: its meaning.\n" in texts[".py"]
        assert f"    {name} = torch.empty_like(cache, " in texts[".py"]
        assert f'CheckShape(kOp, "{name}", {name}, cache.dimensions())' in texts["_ffi.cc"]
        assert f"ffi::Result<ffi::AnyBuffer> {name}," in texts["_ffi.cc"] and f"void* {name};" in texts[".h"]
        assert f"{name}[i] = pyxla::FromFloat<T>(" in texts["_host.cc"] and f"T* {name}," in texts[".cu"]
    assert "# A result of another shape or dtype: cache.new_empty(shape, dtype=torch.int32)\n" in texts[".py"]
    assert not any("out_0" in text for text in texts.values())


@pytest.mark.slow
def test_stubs_of_all_schemas_build_and_pass(tested):
    assert tested.returncode == 0, tested.stdout[-4000:] + tested.stderr[-2000:]
    assert re.search(r"^\d+ passed, 0 failed, 0 skipped$", tested.stdout.splitlines()[-1])


@pytest.mark.slow
def test_table_shows_each_op(tested):
    assert "custom" in tested.stdout and "worst error: share of what is allowed" in tested.stdout
    for name in SCHEMAS:
        row = next(line.split() for line in tested.stdout.splitlines() if line.split()[:1] == [name])
        assert row[2:8] == ["ok"] * 6 and row[8].endswith("%") and row[9] == "0"


@pytest.mark.slow
def test_pytests_own_summary_stays_in_the_output(tested):
    assert re.search(r"^=+ \d+ passed, \d+ deselected in [\d.]+s.* =+$", tested.stdout, re.MULTILINE)


@pytest.mark.slow
def test_python_function_has_the_schema(written, tested):
    """From the annotations torch infers the schema that the author requested."""
    script = (
        "import json, torch, pyxla\n"
        f"names = {list(SCHEMAS)}\n"
        "print(json.dumps([str(getattr(torch.ops.xla_gpu, n).default._schema) for n in names]))"
    )
    command = [sys.executable, "-P", "-c", script]
    output = subprocess.run(command, env=written.environment(), check=True, capture_output=True, text=True).stdout
    import torch

    for name, text in zip(SCHEMAS, json.loads(output), strict=True):
        theirs = torch._C.parse_schema(text)
        ours = torch._C.parse_schema(f"xla_gpu::{name}" + (SCHEMAS[name] or "(Tensor x, float scale=1.0) -> Tensor"))
        for their, our in zip(theirs.arguments, ours.arguments, strict=True):
            assert (their.name, str(their.type)) == (our.name, str(our.type))
            assert (their.has_default_value(), their.default_value) == (our.has_default_value(), our.default_value)
            assert (their.alias_info is None) == (our.alias_info is None)
        assert [r.name for r in theirs.returns] == [r.name for r in ours.returns]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_stub_compiles_for_cuda_without_warnings(tmp_path):
    tree = Tree(tmp_path)
    new_op(tree, "everything", ALL_KINDS)
    result = tree.run("build", "everything", "--cuda", "on")
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"build: built everything in [\d.]+ s\n", result.stderr)
    listed = tree.run("list", "--json").stdout
    entry = next(entry for entry in map(json.loads, listed.splitlines()) if entry["op"] == "everything")
    assert entry["platforms"] == ["Host", "CUDA"] and "90a-real" in entry["architectures"]


# One line of one file of each op: (file, pattern, replacement).
CHANGES = {
    "plain": ("_host.cc", "FromFloat<T>(factor * blend)", "FromFloat<T>(2 * factor * blend)"),
    "my_norm": ("_host.cc", "2 * pyxla::ToFloat(weight[i])", "3 * pyxla::ToFloat(weight[i])"),
    "everything": (".h", "5 * static_cast<double>(params.n)", "4 * static_cast<double>(params.n)"),
    "only_in_place": ("_host.cc", "i < piece_end", "i < piece_end - 1"),
    "two_in_place": ("_ffi.cc", ".key_cache = key_cache.", ".key_cache = value_cache."),
    "exp": (".py", "3 * len(mode.encode())", "4 * len(mode.encode())"),
}


@pytest.fixture(scope="module")
def changed(written, tested):
    """The results of the tests after these changes. Last in this file, because the ops stay changed."""
    for name, (suffix, old, new) in CHANGES.items():
        path = written.kernels / name / f"{name}{suffix}"
        assert path.read_text().count(old) == 1, name
        path.write_text(path.read_text().replace(old, new))
    return written.run("test", *CHANGES, "--", "-k", "check_lazy and f32-3x5", "-rf")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_changed_line_fails_the_test(changed, name):
    assert changed.returncode == 1
    assert f"FAILED kernels/{name}/test_{name}.py::test_op[f32-3x5-check_lazy]" in changed.stdout
    row = next(line for line in changed.stdout.splitlines() if line.split()[:1] == [name])
    assert "1 FAILED" in row
    assert changed.stdout.splitlines()[-1] == f"0 passed, {len(CHANGES)} failed, 0 skipped"


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
