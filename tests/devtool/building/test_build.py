"""`devtool build`: what it builds, and what it leaves unchanged."""

import json
import shutil
import stat
import subprocess

import pytest

from tests.devtool_tree import TINY


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
