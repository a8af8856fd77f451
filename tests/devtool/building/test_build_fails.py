"""`devtool build` that fails: errors of compilers and disks, builds that are interrupted or wait for another."""

import os
import shutil
import signal
import time

import pytest

from tests.devtool_tree import TINY, Tree, processes_in, tree_on_a_bad_disk


class WaitingCompiler:
    """An op whose compilation waits until it is released, because its source includes a pipe without a writer."""

    def __init__(self, tree: Tree, op: str):
        source = tree.tiny_op(op, f'#include "{op}/pipe.inc"\n{TINY}')
        self.pipe = source.parent / "pipe.inc"
        os.mkfifo(self.pipe)
        self.end: int | None = None

    def wait_until_it_reads(self) -> None:
        deadline = time.monotonic() + 60
        while self.end is None:
            try:
                self.end = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                assert time.monotonic() < deadline, "the compiler did not start"
                time.sleep(0.02)

    def let_go(self) -> None:
        self.pipe.unlink()
        self.pipe.touch()
        os.close(self.end)


def test_compilers_message_comes_first(tree):
    path = tree.tiny_op("one", "int answer() { return nonsense; }\n")
    tree.tiny_op("two", "int answer() { return other_nonsense; }\n")
    result = tree.run("build")
    assert (result.returncode, result.stdout) == (1, "")
    lines = result.stderr.splitlines()
    assert lines[0].startswith(("/", "In file")) and "_ffi.cc: In function" in lines[0]
    assert f"{path}:1:23: error: 'nonsense' was not declared" in result.stderr
    assert "other_nonsense" in result.stderr  # the other op is built too
    assert lines[-3] in (
        "build: one, two: expected it to build, got errors in one/one_ffi.cc, two/two_ffi.cc",
        "build: two, one: expected it to build, got errors in two/two_ffi.cc, one/one_ffi.cc",
    )
    assert lines[-2:] == ["", "hint: correct the error above, then devtool build one two"]
    assert "FAILED" not in result.stderr and "-fPIC" not in result.stderr and "ninja" not in result.stderr


def test_linkers_message_comes_first(tree):
    tree.tiny_op("one", "int missing();\nint answer();\nint answer() { return missing(); }\n")
    result = tree.run("build", "one")
    assert "undefined reference to `missing()'" in result.stderr
    assert "build: one: expected it to build, got errors while linking\n\nhint: " in result.stderr


def test_warning_is_an_error(tree):
    tree.tiny_op("one", "int answer();\nint answer() { int unused; return 42; }\n")
    assert "error: unused variable 'unused'" in tree.run("build", "one").stderr


@pytest.mark.parametrize("names", ["", "no-such-compiler", '"g++'])
def test_no_compiler(shared, tmp_path, names):
    for tool in ("cmake", "ninja"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/bin/false")
    result = shared.run("build", PATH=str(tmp_path), CXX=names)
    assert result.returncode == 1
    assert result.stderr == (
        f"build: compiler: expected a C++20 compiler ({names or 'c++ or g++'}), got none on PATH\n\n"
        "hint: apt-get install g++, or name one in CXX\n"
    )


def test_no_cmake_and_no_ninja(shared, tmp_path, monkeypatch):
    from devtool import processes
    from devtool.building import build
    from devtool.errors import DevtoolError

    monkeypatch.setattr(processes.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DevtoolError, match=r"build: cmake: expected it beside .* or on PATH, got none") as error:
        build.build_ops(["one"], build.Options())
    assert error.value.exit_code == 1


def test_broken_compiler(tree, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'my compiler is broken' >&2\nexit 3\n")
    broken.chmod(0o755)
    result = tree.run("build", CXX=str(broken))
    assert result.returncode == 1
    assert result.stderr.startswith("CMake Error") and "my compiler is broken" in result.stderr
    assert "build: configure: expected CMake to succeed, got the error above\n\nhint: " in result.stderr
    assert tree.run("build").returncode == 0


def test_cuda_wanted_without_a_cuda_compiler(tree):
    result = tree.run("build", "--cuda", "on", CUDACXX="/no/such/nvcc")
    assert result.returncode == 1
    assert "/no/such/nvcc" in result.stderr
    assert "build: configure: expected CMake to succeed, got the error above\n\nhint: " in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_build_ends_its_children_and_the_next_one_works(tree, number):
    compiler = WaitingCompiler(tree, "slow")
    child = tree.start("build", "slow")
    compiler.wait_until_it_reads()
    assert len(processes_in(tree.root / "kernels/slow")) >= 1
    child.send_signal(number)
    stderr = child.communicate(timeout=30)[1]
    assert (child.returncode, stderr) == (130, "\ndevtool: interrupted\n")
    assert processes_in(tree.root) == []
    compiler.let_go()
    assert tree.run("build", "slow").stderr.startswith("build: built slow in ")


def test_killed_build_ends_its_children_and_the_next_one_works(tree):
    """The signal comes when no command is about to start: ninja could miss it, and no later signal would reach it."""
    compiler = WaitingCompiler(tree, "slow")
    child = tree.start("build", "slow")
    compiler.wait_until_it_reads()
    before = None
    while before != (before := processes_in(tree.root)):
        time.sleep(0.5)
    child.kill()
    child.communicate()
    deadline = time.monotonic() + 30
    while processes_in(tree.root):
        assert time.monotonic() < deadline, processes_in(tree.root)
        time.sleep(0.05)
    compiler.let_go()
    assert tree.run("build", "slow").stderr.startswith("build: built slow in ")


def test_second_build_waits_and_says_so(tree):
    compiler = WaitingCompiler(tree, "slow")
    first = tree.start("build", "slow")
    compiler.wait_until_it_reads()
    second = tree.start("build", "one")
    waiting = second.stderr.readline()
    assert waiting == f"build: waiting for process {first.pid}, which builds in {tree.root / 'build/cmake'}\n"
    assert second.poll() is None
    compiler.let_go()
    assert first.communicate(timeout=60)[1].startswith("build: built slow in ")
    assert second.communicate(timeout=60)[1] == "build: nothing to do\n"
    assert (first.returncode, second.returncode) == (0, 0)


@pytest.mark.parametrize("what", ["full", "read-only"])
def test_disk_that_takes_nothing(tmp_path, what):
    with tree_on_a_bad_disk(tmp_path, what) as tree:
        result = tree.run("build", PYTHONDONTWRITEBYTECODE="1")
    expected, hint = {
        "full": ("the disk is full", "free some space"),
        "read-only": ("read-only", "make it writable"),
    }[what]
    assert result.returncode == 1
    assert expected in result.stderr and f"\n\nhint: {hint}" in result.stderr, result.stderr
    assert "Traceback" not in result.stderr


def test_disk_that_fills_up_while_compiling(tree):
    """The compiler reports the full disk; devtool names the disk, not the source."""
    from devtool.building.build import _failure

    said = "/build/one_ffi.cc:1: fatal error: error writing to /build/x.s: No space left on device\n"
    error = _failure("one", "it to build", "errors in one/one_ffi.cc", said, "correct it")
    assert error.message == (
        "build: one: the disk is full ('No space left on device', see above)\n\nhint: free some space"
    )
