"""What the summary of `devtool test` names as not tested: marks of a stub, and CUDA code that did not run."""

import json

import pytest

from devtool import project
from devtool.testing.untested import cuda_lines, stub_lines
from tests.devtool_tree import Tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Tree(tmp_path_factory.mktemp("untested"))


def test_a_green_run_names_the_stub_and_the_cuda_code(tree):
    tree.tiny_op("tiny")
    (tree.kernels / "tiny/test_tiny.py").write_text("# a test\n\ndef test_it(): pass  # replace: by a real one\n")
    (tree.kernels / "tiny/tiny.cu").touch()
    result = tree.run("test", "tiny", "--device", "cpu")
    assert result.returncode == 0
    assert result.stdout.splitlines()[-4:] == [
        "stub: tiny: still to be replaced (1):",
        "  kernels/tiny/test_tiny.py:3: by a real one",
        "CUDA: not compiled: devtool build tiny --cuda on compiles it",
        "1 passed, 0 failed, 0 skipped",
    ]


@pytest.mark.parametrize("route", ["cuda", "triton"])
def test_every_mark_of_new_op_is_found(tree, monkeypatch, route):
    monkeypatch.setattr(project, "root", lambda: tree.root)
    assert tree.run("new-op", f"stub_{route}", "--route", route).returncode == 0
    heading, *lines = stub_lines([f"stub_{route}", "simple_add"])
    texts = {path: path.read_text() for path in (tree.kernels / f"stub_{route}").iterdir()}
    assert len(lines) == sum(text.count("replace: ") for text in texts.values()) > 8
    assert heading == f"stub: stub_{route}: still to be replaced ({len(lines)}):"
    for line in lines:
        place, number, what = line.strip().split(":", 2)
        assert f"replace:{what}" in (tree.root / place).read_text().splitlines()[int(number) - 1]
    assert stub_lines(["simple_add"]) == []


@pytest.fixture
def ops(tmp_path, monkeypatch):
    """Two ops with CUDA code and one without; a function that writes their manifests."""
    monkeypatch.setattr(project, "root", lambda: tmp_path)
    for name in ("first/first.cu", "second/triton_kernels.py", "on_the_host/on_the_host_host.cc"):
        (tmp_path / "kernels" / name).parent.mkdir(parents=True)
        (tmp_path / "kernels" / name).touch()
    (tmp_path / "build/lib").mkdir(parents=True)

    def built(**architectures):
        for op, own in architectures.items():
            project.library(op).with_suffix(".json").write_text(json.dumps({"cuda_architectures": own}))

    return built


def lines(*, named=(), called=()):
    checks = [
        {"check": check, "test": f"kernels/{op}/test_{op}.py::test_op[{check}]", "cuda_handler": op in called}
        for op in ("first", "second")
        for check in ("raw", "lazy")
    ]
    return cuda_lines(["first", "second", "on_the_host"], named, None, checks, "no GPU")


def test_cuda_code_of_all_architectures(ops):
    ops(first=["80-real", "90a-real", "100-real", "100-virtual"], second=["80-real", "90a-real", "100-real"])
    assert lines() == ["CUDA: compiled for 3 architectures (80, 90a, 100), not run: no GPU"]
    assert lines(called=["first", "second"]) == [
        "CUDA: compiled for 3 architectures (80, 90a, 100), handlers called up to the launch, not run: no GPU"
    ]


def test_cuda_code_that_differs_between_ops(ops):
    ops(first=["90a-real"], second=["80-real", "90a-real"])
    assert lines(called=["first"]) == [
        "CUDA: first: compiled for 1 architecture (90a), handlers called up to the launch, not run: no GPU",
        "CUDA: second: compiled for 2 architectures (80, 90a), not run: no GPU",
    ]
    ops(second=[])
    assert lines()[1] == "CUDA: second: not compiled: devtool build second --cuda on compiles it"


def test_only_the_ops_that_differ_from_most_are_named(ops, tmp_path):
    for name in ("third", "fourth"):
        (tmp_path / "kernels" / name).mkdir()
        (tmp_path / "kernels" / name / f"{name}.cu").touch()
    ops(first=["90a-real"], third=["90a-real"], fourth=["90a-real"], second=["80-real", "90a-real"])
    assert cuda_lines(["second", "first", "third", "fourth"], [], None, [], "no GPU") == [
        "CUDA: compiled for 1 architecture (90a), not run: no GPU",
        "CUDA: second: compiled for 2 architectures (80, 90a), not run: no GPU",
    ]


def test_no_cuda_code(ops):
    ops(first=[], second=[])
    assert lines() == ["CUDA: not compiled: devtool build --cuda on compiles it"]
    assert lines(named=["first", "second"]) == ["CUDA: not compiled: devtool build first second --cuda on compiles it"]
    assert cuda_lines(["on_the_host"], [], None, [], "no GPU") == []
