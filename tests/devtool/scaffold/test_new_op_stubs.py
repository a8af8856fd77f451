"""What `devtool new-op` writes: it is laid out, builds, passes its tests, and fails them after a change."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from devtool.scaffold.names import argument_problem
from tests.devtool_tree import Tree

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
        tree.new_op(name, schema)
    words = words_of(tree.kernels / "everything")
    assert 40 < len(words) <= 64
    kinds = ("Tensor", "int", "float", "Tensor?")
    arguments = ", ".join(f"{kinds[i % 4]} {word}" for i, word in enumerate(words))
    tree.new_op("names", f"({arguments}) -> (Tensor, Tensor)")
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
    tree.new_op("everything", ALL_KINDS)
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
