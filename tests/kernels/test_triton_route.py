"""`devtool new-op --route triton`: its folder builds and passes; the build rejects a wrong triton_kernels.py."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devtool.scaffold.names import argument_problem
from tests.conftest import ROOT
from tests.devtool_tree import Tree, needs_nvcc

ALL_KINDS = (
    "(Tensor? w, Tensor(a!) cache, Tensor x, bool flag, int n, int? k=None, float? f=2, bool b=True, "
    "Tensor? late=None) -> (Tensor, Tensor)"
)
# Arguments with names that the files use themselves.
NAMES = "(Tensor element_ty, Tensor? block, int divisible, float element) -> (Tensor, Tensor)"
FILES = "__init__.py cases.py test_{0}.py test_triton_kernels.py triton_kernels.py {0}_launch.cc {0}.h {0}.py "
FILES += "{0}_ffi.cc {0}_host.cc"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A tree with two Triton ops, as new-op writes them."""
    tree = Tree(tmp_path_factory.mktemp("triton_route"))
    for name, schema in {"everything": ALL_KINDS, "named": NAMES}.items():
        result = tree.run("new-op", name, schema, "--route", "triton")
        assert result.returncode == 0, result.stderr
        assert f"5. Compute it on the GPU:          kernels/{name}/triton_kernels.py" in result.stderr
        assert sorted(result.stdout.split()) == sorted(f"kernels/{name}/{f.format(name)}" for f in FILES.split())
    return tree


@pytest.fixture(scope="module")
def built(tree):
    result = tree.run("build", "everything", "named", "--cuda", "on")
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"build: built everything, named in [\d.]+ s\n", result.stderr)
    return tree


@pytest.mark.slow
def test_stub_passes_without_cuda_and_says_so(tree):
    result = tree.run("test", "everything", "named", "--", "-k", "f32-3x5 or bf16-3x5 or absent or bad_input")
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    manifest = json.loads(tree.library("everything").with_suffix(".json").read_text())
    assert manifest["cuda_architectures"] == [] and "Triton" not in manifest["compiler"]


@pytest.mark.slow
@needs_nvcc
def test_stub_compiles_for_every_real_architecture(built):
    listed = built.run("list", "--json").stdout
    entry = next(entry for entry in map(json.loads, listed.splitlines()) if entry["op"] == "everything")
    assert entry["platforms"] == ["Host", "CUDA"] and entry["state"] == "built"
    assert entry["architectures"] == ["80-real", "90a-real", "100a-real"]
    assert ", Triton 3." in entry["compiler"]


@pytest.mark.slow
@needs_nvcc
def test_stub_is_right_in_the_interpreter(built):
    result = built.run("test", "everything", "named", "--cuda", "on", "--", "-k", "interpreter or check_raw")
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    assert len(re.findall(r"test_triton_kernels.py \.", result.stdout)) == 2


@pytest.mark.slow
@needs_nvcc
def test_same_bytes_from_another_path_and_with_settings_of_triton(built, tmp_path):
    other = Tree(tmp_path)
    shutil.copytree(built.kernels / "named", other.kernels / "named")
    result = other.run("build", "named", "--cuda", "on", TRITON_DISABLE_LINE_INFO="0", TRITON_DEFAULT_FP_FUSION="0")
    assert result.returncode == 0, result.stderr
    assert other.library("named").read_bytes() == built.library("named").read_bytes()
    assert str(built.root).encode() not in built.library("named").read_bytes()


@pytest.mark.slow
@needs_nvcc
def test_edit_of_the_kernel_makes_the_library_stale(built):
    source = built.kernels / "named/triton_kernels.py"
    before = source.read_text()
    source.write_text(before + "# edited\n")
    entry = next(e for e in map(json.loads, built.run("list", "--json").stdout.splitlines()) if e["op"] == "named")
    source.write_text(before)
    assert entry["state"] == "stale"


def test_names_that_a_kernel_uses_are_refused():
    assert argument_problem("tl") == argument_problem("triton") == "a name that the op's own files do not use"


@pytest.mark.parametrize("argument", ["str mode", "int[] sizes", "float[] scales"])
def test_schema_with_what_no_kernel_takes(tree, argument):
    result = tree.run("new-op", "unwritten", f"(Tensor x, {argument}) -> Tensor", "--route", "triton")
    assert result.returncode == 2 and not (tree.kernels / "unwritten").exists()
    expected = f"new-op: schema: expected tensors and numbers, which a Triton kernel takes, got {argument}\n\nhint: "
    assert result.stderr.startswith(expected)


def test_route_that_does_not_exist(tree):
    result = tree.run("new-op", "unwritten", "--route", "cutlass")
    assert result.returncode == 2 and not (tree.kernels / "unwritten").exists()
    assert "'cutlass' is not one of 'cuda', 'triton', 'wrap'" in result.stderr


KERNEL = """
import triton
import triton.language as tl


@triton.jit
def copy(x, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < count), mask=i < count)


VARIANTS = [
    {
        "kernel": copy,
        "types": {"x": "*fp32", "out": "*fp32", "count": "i32"},
        "constants": {"BLOCK": 64},
        "grid": ("cdiv(count, BLOCK)",),
    }
]
"""
COPY = "VARIANTS[0]: copy"
FILE = "copy_op: triton_kernels.py"
IMPORT = "module: expected one that can be imported with Triton alone, got "
# Text of KERNEL -> its replacement, and the resulting message.
MISTAKES = {
    "type": ('"count": "i32"', '"count": "i1"', f"{COPY}: count: expected one of *fp64, *fp32, "),
    "pointer-type": ('"x": "*fp32"', '"x": "*fp32x"', f"{COPY}: x: expected one of *fp64, "),
    "missing-type": ('"out": "*fp32", ', "", f"{COPY}: types: expected x, out, count (the other parameters), got "),
    "no-constant": ('{"BLOCK": 64}', "{}", f"{COPY}: constants: expected BLOCK (the constexprs), got nothing"),
    "key": ('"grid"', '"waves": 1, "grid"', "VARIANTS[0]: expected only kernel, types, "),
    "no-grid": ('"grid": ("cdiv(count, BLOCK)",),', "", "VARIANTS[0]: expected grid, got none"),
    "grid": ('("cdiv(count, BLOCK)",)', '"count"', f"{COPY}: grid: expected a tuple of one to three sizes, got "),
    "grid-name": ("cdiv(count", "cdiv(rows", f"{COPY}: grid: expected integers (BLOCK, count), + - * "),
    "grid-syntax": ("cdiv(count, BLOCK)", "cdiv(count", f"{COPY}: grid: expected an expression of "),
    "divisor": ("cdiv(count, BLOCK)", "64 // count", f"{COPY}: grid: expected a constant above 0 as divisor, "),
    "code": ("cdiv(count, BLOCK)", "__import__('os').system('true')", f"{COPY}: grid: expected integers ("),
    "divisible": ('"grid"', '"divisible_by_16": ("rows",), "grid"', f"{COPY}: divisible_by_16: expected pointers "),
    "warps": ('"grid"', '"num_warps": 0, "grid"', f"{COPY}: num_warps: expected an integer above 0, got 0"),
    "no-kernel": ('"kernel": copy', '"kernel": print', "VARIANTS[0]: expected a dict with a @triton.jit function"),
    "none": ("VARIANTS", "VARIATIONS", "VARIANTS: expected a list of variants, got none"),
    "import": ("import triton\n", "import tritone\n", "module: expected one that can be imported with Triton "),
    "annotation": ("tl.constexpr", "tl.constexp", f"{IMPORT}AttributeError: module 'triton.language' has no attribute "
                   "'constexp' in line 7"),
    "syntax": ("def copy(", "def copy copy(", f"{IMPORT}SyntaxError: expected '(' (triton_kernels.py, line 7)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def spec():
    sys.path.insert(0, str(ROOT / "pyxla/cmake"))
    import triton_spec

    yield triton_spec
    sys.path.remove(str(ROOT / "pyxla/cmake"))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_in_the_kernels_file(spec, tmp_path, mistake):
    old, new, message = MISTAKES[mistake]
    assert old in KERNEL
    path = tmp_path / "copy_op/triton_kernels.py"
    path.parent.mkdir()
    path.write_text(KERNEL.replace(old, new))
    with pytest.raises(spec.SpecError) as caught:
        spec.read_variants(path)
    assert caught.value.args[0].startswith(f"triton_kernels.py: {message}")
    assert caught.value.args[1]


@pytest.mark.parametrize(
    ("old", "new", "got"),
    [
        (
            "tl.load(",
            "tl.nope(",
            "AttributeError(\"module 'triton.language' has no attribute 'nope'\") in line 9: tl.store(",
        ),
        ("i < count)\n", "j < count)\n", "NameError('j is not defined') in line 9: tl.store("),
        ('"BLOCK": 64', '"BLOCK": 65', "ValueError: arange's range must be a power of 2 in line 8: i = tl.program_id("),
        (
            "@triton.jit\ndef copy(x, out, count, BLOCK: tl.constexpr):\n",
            "@triton.jit\ndef helper(i):\n    return i.nope\n\n\n"
            "@triton.jit\ndef copy(x, out, count, BLOCK: tl.constexpr):\n    helper(count)\n",
            "AttributeError(\"'tensor' object has no attribute 'nope'\") in line 8: return i.nope",
        ),
    ],
    ids=["unknown-function", "unknown-name", "not-a-power-of-2", "in-a-helper"],
)
def test_what_triton_does_not_compile(spec, tmp_path, old, new, got):
    """Triton's own text has the line counted from `def`, or none, and the reason only in the exception's cause."""
    import triton_compile

    path = tmp_path / "copy_op/triton_kernels.py"
    path.parent.mkdir()
    path.write_text(KERNEL.replace(old, new, 1))
    (variant,) = spec.read_variants(path)
    with pytest.raises(spec.SpecError) as caught:
        triton_compile.compile_variant(variant, ["90a-real"], tmp_path / "0.fatbin", "fatbinary")
    expected, _, said = caught.value.args[0].partition(" expected a kernel that Triton compiles, got ")
    assert expected.startswith("triton_kernels.py: copy (line ") and said.startswith(got) and "\n" not in said


@pytest.mark.parametrize(
    ("text", "cpp", "value"),
    [
        ("cdiv(rows, 4) * BLOCK", "(pyxla::CeilDiv(arg_rows, INT64_C(4)) * INT64_C(64))", 3 * 64),
        ("rows // 4 + rows % 4", "(pyxla::FloorDiv(arg_rows, INT64_C(4)) + pyxla::Modulo(arg_rows, INT64_C(4)))", 4),
        ("min(rows, 3) if_", None, None),
        ("max(rows, BLOCK) - 1", "(std::max<int64_t>(arg_rows, INT64_C(64)) - INT64_C(1))", 63),
        ("rows < 20 and not_", None, None),
        ("rows or 1", None, None),
        ("rows < 20 and (rows == 10 or True)", "((arg_rows < INT64_C(20)) && ((arg_rows == INT64_C(10)) || true))", 1),
    ],
)  # fmt: skip
def test_expression_is_the_same_in_cpp(spec, text, cpp, value):
    if cpp is None:
        with pytest.raises(spec.SpecError):
            spec.Expression("grid", text, {"rows"}, {"BLOCK": 64})
        return
    expression = spec.Expression("grid", text, {"rows"}, {"BLOCK": 64})
    assert expression.cpp == cpp and expression.value({"rows": 10}) == value


def test_expression_has_the_same_value_in_cpp(spec, tmp_path):
    """C++ divides towards zero: `(rows - 1) // 4 + 1` would be one block for no rows."""
    texts = ["rows // 4", "rows % 4", "cdiv(rows, 4)", "(rows - 1) // 4 + 1", "rows == 3 or rows < 0", "min(rows, 2)"]
    expressions = [spec.Expression("grid", text, {"rows"}, {}) for text in texts]
    lines = "".join(f'std::cout << {e.cpp} << "\\n";\n' for e in expressions)
    source = '#include <algorithm>\n#include <iostream>\n#include "pyxla/ffi/triton.h"\n'
    source += f"int main() {{\nfor (int64_t arg_rows = -9; arg_rows < 10; ++arg_rows) {{\n{lines}}}\n}}\n"
    (tmp_path / "values.cc").write_text(source)
    command = ["g++", "-std=c++20", f"-I{ROOT / 'pyxla/include'}", "values.cc", "-o", "values"]
    subprocess.run(command, cwd=tmp_path, check=True)
    got = subprocess.run([tmp_path / "values"], check=True, capture_output=True, text=True).stdout.split()
    assert list(map(int, got)) == [int(e.value({"rows": rows})) for rows in range(-9, 10) for e in expressions]


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(
    ("old", "new", "architectures", "message"),
    [
        ('"count": "i32"', '"count": "i2"', None, f"{FILE}: {COPY}: count: expected one of "),
        ("tl.load(x + i", "tl.load(x + y", None, f"{FILE}: copy (line 6) with x=*fp32, out=*fp32, "),
        ("", "", "100-virtual", "CUDA architecture: expected a real one such as 90a-real for Triton, got 100-virtual"),
    ],
    ids=["type", "kernel", "architecture"],
)  # fmt: skip
def test_build_ends_with_the_mistake(tmp_path, old, new, architectures, message):
    tree = Tree(tmp_path)
    shutil.rmtree(tree.kernels / "simple_add")
    tree.tiny_op("copy_op")
    (tree.kernels / "copy_op/triton_kernels.py").write_text(KERNEL.replace(old, new) if old else KERNEL)
    if architectures:
        path = tree.root / "pyxla/cmake/CMakeLists.txt"
        path.write_text(
            re.sub(r'PYXLA_ARCHITECTURES "[^"]*"', f'PYXLA_ARCHITECTURES "{architectures}"', path.read_text())
        )
    result = tree.run("build", "copy_op", "--cuda", "on")
    assert result.returncode == 1
    assert message in result.stderr and "\nhint: " in result.stderr
    assert not tree.library("copy_op").exists()


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("cuda", ["on", "auto"])
def test_without_triton(tmp_path, cuda):
    """With `--cuda on` the build fails; otherwise the op is built for the CPU, as without nvcc."""
    tree = Tree(tmp_path)
    shutil.rmtree(tree.kernels / "simple_add")
    tree.tiny_op("copy_op")
    (tree.kernels / "copy_op/triton_kernels.py").write_text(KERNEL)
    finder = tree.root / "pyxla/cmake/find_wheels.py"
    finder.write_text(finder.read_text().replace('package_folders("triton")', 'package_folders("no_triton")'))
    result = tree.run("build", "copy_op", "--cuda", cuda)
    if cuda == "on":
        assert result.returncode == 1
        assert re.search(r"copy_op: triton: expected it beside \S+ \(PYXLA_CUDA=ON\), got none\n", result.stderr)
    else:
        assert result.returncode == 0, result.stderr
        assert json.loads(Path(tree.library("copy_op")).with_suffix(".json").read_text())["cuda_architectures"] == []
