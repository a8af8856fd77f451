"""`devtool new-op` for an existing op writes another implementation, which every command shows with the op."""

import json
import re

import pytest

from tests.devtool_tree import TINY, Tree, needs_nvcc

FILES = {
    "triton": "__init__.py implements {0}.py {0}_launch.cc test_{0}.py test_triton_kernels.py triton_kernels.py",
    "cuda": "__init__.py implements {0}.py {0}.cu test_{0}.py",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A tree in which simple_add has two more implementations, as new-op writes them."""
    tree = Tree(tmp_path_factory.mktemp("implementations"))
    for route, files in FILES.items():
        folder = f"simple_add_{route}"
        result = tree.run("new-op", "simple_add", "--route", route)
        assert result.returncode == 0, result.stderr
        assert sorted(result.stdout.split()) == sorted(f"kernels/{folder}/{f.format(folder)}" for f in files.split())
        assert f"implementation {route} of simple_add" in result.stderr
        assert re.findall(r"^  (\d)\. ", result.stderr, re.MULTILINE) == list("123456")
    return tree


@pytest.fixture(scope="module")
def tested(tree):
    return tree.run("test", "simple_add", "--", "-k", "test_op")


def test_begins_with_the_ops_own_cuda_code(tree):
    copied, own = (tree.kernels / name / f"{name}.cu" for name in ("simple_add_cuda", "simple_add"))
    assert copied.read_text() == own.read_text()


def test_passes_at_once_and_has_a_row_beside_the_op(tested):
    assert tested.returncode == 0, tested.stdout[-4000:] + tested.stderr
    rows = {words[0]: words[1:] for words in map(str.split, tested.stdout.splitlines()) if words[2:8] == ["ok"] * 6}
    assert list(rows) == ["simple_add", "simple_add.cuda", "simple_add.triton"]
    # On the CPU one case of each dtype is enough, because the host code is the op's.
    assert int(rows["simple_add.cuda"][0]) == int(rows["simple_add.triton"][0]) < int(rows["simple_add"][0])


def test_one_implementation_by_its_folder(tree):
    result = tree.run("test", "simple_add_triton", "--", "-k", "check_lazy")
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    assert "simple_add.triton" in result.stdout and "simple_add.cuda" not in result.stdout


def test_list_shows_it_under_its_op(tree, tested):
    entries = [json.loads(line) for line in tree.run("list", "--json").stdout.splitlines()]
    assert [(e["op"], e["implements"], e["targets"]) for e in entries] == [
        ("simple_add", None, ["xla_gpu_simple_add"]),
        ("simple_add_cuda", "simple_add", ["xla_gpu_simple_add_cuda"]),
        ("simple_add_triton", "simple_add", ["xla_gpu_simple_add_triton"]),
    ]
    overloads = [f"xla_gpu::simple_add{name}" for name in ("", ".cuda", ".triton")]
    assert [e["schema"].partition("(")[0] for e in entries] == overloads


@pytest.mark.parametrize("name", ["simple_add.triton", pytest.param("simple_add_triton", marks=pytest.mark.slow)])
def test_hlo_of_an_implementation(tree, tested, name):
    result = tree.run("hlo", name)
    assert result.returncode == 0, result.stderr
    assert result.stderr.endswith("hlo: 1 custom call: xla_gpu_simple_add_triton\n")


def test_bench_times_it_beside_the_op(tree, tested):
    kept = tree.root / "run.json"
    options = ["--device", "cpu", "--rounds", "2", "--layer", "raw", "--case", "bf16-1x4096", "--json", str(kept)]
    result = tree.run("bench", "simple_add_cuda", *options)
    assert result.returncode == 0, result.stderr
    document = json.loads(kept.read_text())
    assert [la["name"] for la in document["cases"][0]["layers"]] == ["raw", "raw step", "cuda raw", "cuda raw step"]
    assert sorted(document["sources"]) == ["simple_add", "simple_add_cuda"]


def test_report_has_a_section_of_it(tree, tested):
    result = tree.run("report", "simple_add_triton", "--output", str(tree.root / "report.html"))
    assert result.returncode == 0, result.stderr
    page = (tree.root / "report.html").read_text()
    assert "simple_add.triton(Tensor a, Tensor b" in page and "xla_gpu_simple_add_triton" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["simple_add", "(Tensor x) -> Tensor", "--route", "cuda"],
            "SCHEMA: expected none, as simple_add has one, got",
        ),
        (["simple_add", "--route", "triton"], "NAME: expected a name that is free, got 'simple_add_triton'"),
        (["simple_add", "--route", "wrap"], "--route: expected cuda or triton for an implementation of simple_add"),
        (["simple_add", "--implementation", "Fast"], "--implementation: expected lower case letters"),
        (["simple_add", "--implementation", "pytest"], "--implementation: expected a name that its folder's files do"),
        (["simple_ad", "--implementation", "fast"], "NAME: expected an op with --implementation (simple_add), got"),
        (["simple_add"], "NAME: expected a name that is free, got 'simple_add'"),
    ],
)
def test_refuses(tree, arguments, message):
    before = sorted(path for path in tree.kernels.rglob("*") if path.suffix != ".pyc")
    result = tree.run("new-op", *arguments)
    assert result.returncode == 2 and result.stderr.startswith(f"new-op: {message}"), result.stderr
    assert sorted(path for path in tree.kernels.rglob("*") if path.suffix != ".pyc") == before


def test_op_whose_header_declares_no_function_for_cuda(tree):
    folder = tree.tiny_op("bare", TINY).parent
    result = tree.run("new-op", "bare", "--route", "triton")
    (folder / "bare_ffi.cc").unlink()
    folder.rmdir()
    assert result.returncode == 1
    assert "new-op: kernels/bare/bare.h: expected the functions for CUDA, got none" in result.stderr


@pytest.mark.slow
@needs_nvcc
def test_both_stubs_compile_for_cuda(tree):
    result = tree.run("build", "simple_add_triton", "simple_add_cuda", "--cuda", "on")
    assert result.returncode == 0, result.stderr
    # The route cuda begins with the op's own kernel; the stub in Triton is not green before it is written.
    shown = {
        "triton": "simple_add: implementation triton: expected a kernel, got the stub",
        "cuda": " passed, 0 failed",
    }
    for name, text in shown.items():
        result = tree.run("test", f"simple_add_{name}", "--cuda", "on", "--", "-k", "interpreter or check_raw")
        assert result.returncode == (name == "triton") and text in result.stdout, result.stdout[-4000:]
