"""`devtool build`: what it builds, what it leaves unchanged, and its errors."""

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.devtool_tree import TINY, Tree, tree_on_a_bad_disk


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A tree with the tiny ops `one` and `two`, configured and built once for all tests of this file."""
    tree = Tree(tmp_path_factory.mktemp("build"))
    shutil.rmtree(tree.kernels / "simple_add")
    for name in ("one", "two"):
        tree.tiny_op(name)
    result = tree.run("build")
    assert result.returncode == 0, result.stderr
    return tree


@pytest.fixture
def tree(shared):
    """The shared tree with its original sources."""
    yield shared
    for folder in shared.kernels.iterdir():
        if folder.is_dir() and folder.name not in ("one", "two"):
            shutil.rmtree(folder)
    for name in ("one", "two"):
        shared.tiny_op(name)
    assert shared.run("build").returncode == 0


def processes_in(folder: Path) -> list[str]:
    """The command lines of running processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().replace("\0", " ")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


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


def test_builds_all_ops_and_prints_their_paths(shared):
    result = shared.run("build")
    assert result.stdout.splitlines() == [str(shared.library("one")), str(shared.library("two"))]
    assert result.stderr == "build: nothing to do\n"


def test_builds_only_what_changed(tree):
    before = tree.library("two").stat().st_mtime_ns
    tree.tiny_op("one", TINY.replace("42", "43"))
    result = tree.run("build")
    assert result.stderr.startswith("build: built one in ")
    assert tree.library("two").stat().st_mtime_ns == before


def test_builds_only_what_is_named(tree):
    tree.tiny_op("one", TINY.replace("42", "43"))
    result = tree.run("build", "two")
    assert (result.stdout, result.stderr) == (f"{tree.library('two')}\n", "build: nothing to do\n")


def test_finds_a_new_op_and_forgets_one_that_is_gone(tree):
    tree.tiny_op("three")
    assert tree.run("build", "three").stderr.startswith("build: built three in ")
    shutil.rmtree(tree.kernels / "three")
    (tree.kernels / "three/__pycache__").mkdir(parents=True)
    by_hand = tree.library("by_hand")
    by_hand.touch()
    result = tree.run("build", "one")
    removed = "build: removed libthree.so, as kernels/three is gone\n"
    assert (result.returncode, result.stderr) == (0, f"{removed}build: nothing to do\n")
    assert {path.name for path in by_hand.parent.glob("lib*")} == {
        *("libone.so", "libone.json", "libtwo.so", "libtwo.json"),
        "libby_hand.so",  # no build wrote it
    }
    by_hand.unlink()


@pytest.mark.parametrize("ops", [[], ["one"]], ids=["all", "one"])
def test_clean_builds_anew(tree, ops):
    assert tree.run("build", *ops, "--clean").stderr.startswith(f"build: built {', '.join(ops) or 'one, two'} in ")
    assert tree.run("build").stderr == "build: nothing to do\n"


def test_another_compiler_configures_anew(tree, tmp_path):
    """CMake by itself keeps the compiler that it found first."""
    wrapper = tmp_path / "my-g++"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>"{tmp_path}/calls"\nexec c++ "$@"\n')
    wrapper.chmod(0o755)
    assert tree.run("build", CXX=str(wrapper)).stderr.startswith("build: built one, two in ")
    assert "one_ffi.cc" in (tmp_path / "calls").read_text()
    assert tree.run("build", CXX=str(wrapper)).stderr == "build: nothing to do\n"


def test_nixpkgs_enters_the_manifest_and_compiles_nothing(tree):
    """A build folder may be used inside and outside `nix develop`."""
    library, objects = tree.library("one"), sorted((tree.root / "build/cmake").rglob("*.o"))
    before = library.read_bytes(), [path.stat().st_mtime_ns for path in objects]
    assert objects and json.loads(library.with_suffix(".json").read_text())["nixpkgs"] is None
    for nixpkgs in ('25.05 "quoted" ca534a7', None):
        environment = {"PYXLA_NIXPKGS_BUILD": nixpkgs} if nixpkgs else {}
        assert tree.run("build", **environment).stderr.startswith("build: built one, two in ")
        assert tree.run("build", **environment).stderr == "build: nothing to do\n"
        assert json.loads(library.with_suffix(".json").read_text())["nixpkgs"] == nixpkgs
        assert (library.read_bytes(), [path.stat().st_mtime_ns for path in objects]) == before


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


def test_sanitizers_have_folders_of_their_own(tree):
    result = tree.run("build", "one", "--sanitize", "undefined")
    assert result.stdout == f"{tree.library('one', 'lib-undefined')}\n"
    assert tree.library("one", "lib-undefined").is_file()
    assert tree.run("build").stderr == "build: nothing to do\n"


def test_library_is_readable_by_everyone(shared):
    assert shared.library("one").stat().st_mode & stat.S_IROTH


def test_output_on_a_terminal_is_one_line_that_changes(tree):
    tree.tiny_op("one", TINY.replace("42", "44"))
    script = " ".join(f"'{word}'" for word in tree.command("build"))
    command = ["script", "-qec", script, "/dev/null"]
    if shutil.which("script") is None:
        pytest.skip("needs `script`")
    result = subprocess.run(command, cwd=tree.root, env=tree.environment(), capture_output=True)
    assert b"\r\033[K[" in result.stdout and b"build: built one in " in result.stdout
