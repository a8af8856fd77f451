"""bin/devtool and setup_env.py on a small tree: real venvs, real pip, real kills; only the wheels are tiny."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.small_tree import PYPROJECT, Tree, kill_alone, mounted, read_until, write_wheel


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Tree:
    """A tree whose .venv is complete, also after each test."""
    tree = Tree(tmp_path_factory.mktemp("made") / "a tree")
    tree.first_run = tree.works("list", "--x=a b")
    return tree


@pytest.fixture
def tree(tmp_path) -> Tree:
    return Tree(tmp_path / "tree")


def test_first_call_installs_the_locks_and_runs_devtool(made):
    seen, errors = made.first_run
    assert seen["prefix"] == str(made.root / ".venv")
    assert seen["arguments"] == ["list", "--x=a b"]
    assert seen["installed"].items() >= {"tiny": "1.0", "devthing": "1.0", "pyxla": "0.1.0"}.items()
    assert "installed devthing-1.0, tiny-1.0" in errors or "installed tiny-1.0" in errors


def test_second_call_takes_the_fast_path(made):
    # A set-up would fail without a Python, and would say something.
    seen, errors = made.works("--help", PYXLA_PYTHON="/nonexistent")
    assert (seen["arguments"], errors) == (["--help"], "")


def test_linked_command_finds_its_tree(made, tmp_path):
    (tmp_path / "devtool").symlink_to(made.root / "bin/devtool")
    environment = made.environment(PYXLA_PYTHON="/nonexistent")
    done = subprocess.run([tmp_path / "devtool"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prefix"] == str(made.root / ".venv")


def test_changed_lock_updates_and_removes_what_left_it(made):
    made.lock("cpu", write_wheel(made.wheels, "tiny", "2.0"), write_wheel(made.wheels, "more", "1.0"))
    seen, errors = made.works()
    assert seen["installed"].items() >= {"tiny": "2.0", "more": "1.0"}.items()
    assert "updating" in errors and "clearing" not in errors
    made.lock("cpu", write_wheel(made.wheels, "tiny", "2.0"))
    seen, _ = made.works()
    assert "more" not in seen["installed"] and "pyxla" in seen["installed"] and "pip" in seen["installed"]


def test_changed_project_leaves_the_wheels_alone(made):
    pyproject = made.root / "pyproject.toml"
    pyproject.write_text(PYPROJECT + "# changed\n")
    _, errors = made.works(PIP_FIND_LINKS="")
    assert "updating" in errors and "installing the project" in errors and "wheels" not in errors


def test_moved_tree_is_made_anew(tree, made):
    shutil.copytree(made.root / ".venv", tree.root / ".venv", symlinks=True)
    seen, errors = tree.works()
    assert "clearing" in errors
    assert seen["prefix"] == str(tree.root / ".venv")
    assert str(made.root) not in (tree.root / ".venv/bin/pip").read_text()


def test_nix_shell_runs_as_it_is(tree):
    seen, errors = tree.works("list", PYXLA_NIX_SHELL="1", PYTHONPATH=str(tree.root))
    assert (seen["arguments"], errors) == (["list"], "")
    assert not (tree.root / ".venv").exists()


@pytest.mark.slow
def test_killed_anywhere_is_repaired_by_the_next_call(tree):
    # Large enough to be interrupted while pip writes it.
    tree.lock("cpu", *(write_wheel(tree.wheels, f"tiny{i}", "1.0", 1 << 22) for i in range(8)))
    points = ("making .venv", "installing the locked pip", "installing the locked wheels", "installed", "the project")
    for number, point in enumerate(points):
        process = tree.start()
        lines = read_until(process, point)
        assert ("half-made" in lines) == (number > 0), lines
        kill_alone(process, tree)
    seen, errors = tree.works()
    assert "half-made" in errors
    assert {f"tiny{i}" for i in range(8)} <= set(seen["installed"])
    assert tree.works(PYXLA_PYTHON="/nonexistent")[1] == ""


def test_killed_update_is_repaired_by_the_next_call(made):
    made.lock("cpu", write_wheel(made.wheels, "tiny", "3.0"))
    process = made.start()
    assert "updating" in read_until(process, "installing the locked wheels")
    kill_alone(process, made)
    seen, errors = made.works()
    assert "half-made" in errors
    assert seen["installed"]["tiny"] == "3.0"


def test_interrupt_ends_with_130_and_leaves_nothing_complete(tree):
    process = tree.start()
    read_until(process, "installing the locked pip")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130 and "Traceback" not in errors
    assert (tree.root / ".venv/stamp").read_text() == ""


def test_two_at_once_share_one_set_up(tree):
    first = tree.start("first")
    read_until(first, "making .venv")
    seen, errors = tree.works("second")
    assert f"waits for process {first.pid}" in errors
    assert "installing" not in errors, "the second one did the work again"
    assert seen["installed"]["tiny"] == "1.0"
    output, _ = first.communicate()
    assert first.returncode == 0 and json.loads(output)["arguments"] == ["first"]


def test_wrong_hash_fails_and_is_not_complete(tree):
    pip = (tree.root / "requirements/dev.txt").read_text().split(" ")[0]
    tree.lock("dev", f"{pip} --hash=sha256:{'0' * 64}\n")
    errors = tree.fails()
    assert "expected pip to install the locked packages, got a package that differs from its locked hash" in errors
    assert "hint: pip cache purge" in errors
    assert (tree.root / ".venv/stamp").read_text() == ""


def test_lock_without_hash_is_refused(tree):
    pip = (tree.root / "requirements/dev.txt").read_text().split(" ")[0]
    tree.lock("dev", pip + "\n")
    assert "Hashes are required" in tree.fails()


def test_no_network_is_named(tree):
    # Nothing listens on port 9 (discard).
    errors = tree.fails(PIP_NO_INDEX="", PIP_FIND_LINKS="", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1")
    assert "got no connection to the package index" in errors and "PIP_INDEX_URL" in errors


def test_package_that_the_index_lacks_is_named(tree):
    next(tree.wheels.glob("pip-*.whl")).unlink()
    assert "got a package index without a locked package" in tree.fails()


def test_foreign_venv_is_not_touched(tree):
    (tree.root / ".venv").mkdir()
    (tree.root / ".venv/mine").write_text("precious")
    errors = tree.fails()
    assert "expected a .venv that devtool made" in errors and "hint: mv " in errors
    assert (tree.root / ".venv/mine").read_text() == "precious"


def test_venv_that_is_a_link_is_not_touched(tree, tmp_path):
    (tree.root / ".venv").symlink_to(tmp_path)
    assert "got a link or a file" in tree.fails()


def test_full_disk_is_named_and_not_complete(tree):
    tree.lock("cpu", write_wheel(tree.wheels, "tiny", "1.0", 1 << 24))
    with mounted(tree.root / ".venv", "size=14m"):
        errors = tree.fails()
        assert "a full disk" in errors and "hint: free some space" in errors
        assert (tree.root / ".venv/stamp").read_text() == ""


def test_read_only_tree_is_named(tmp_path):
    with mounted(tmp_path / "mount", "size=14m") as libc:
        tree = Tree(tmp_path / "mount/tree")
        remount_read_only = 32 | 1
        assert libc.mount(b"tmpfs", str(tmp_path / "mount").encode(), b"tmpfs", remount_read_only, b"") == 0
        errors = tree.fails()
    assert "expected a writable folder, got Read-only file system" in errors and ".venv.lock" in errors


def fake_python(folder: Path, body: str) -> str:
    path = folder / "fake-python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def real_python(folder: Path, before: str) -> str:
    """The real script, with `before` run before the probe."""
    return fake_python(folder, f'shift 2; exec {sys.executable} -E -c "{before}\n$1"')


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("import sys; sys.version_info = (3, 10, 0)", "is Python 3.10"),
        ("import ctypes; ctypes.CDLL = lambda name: open('/nonexistent')", "which torch_xla needs"),
        ("import sys; sys.modules['ensurepip'] = None", "has no ensurepip: apt-get install python3-venv"),
    ],
)
def test_unfit_python_is_refused_with_its_reason(tree, tmp_path, before, reason):
    python = real_python(tmp_path, before)
    errors = tree.fails(PYXLA_PYTHON=python)
    assert f"{python} " in errors and reason in errors and "hint: apt-get install" in errors
    assert not (tree.root / ".venv").exists()


def test_no_python_lists_all_that_were_tried(tree, tmp_path):
    # The programs that the script runs, but no Python; those in /usr/bin are found by path.
    (tmp_path / "bin").mkdir()
    for name in ("readlink", "cat", "cmp", "head"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    script = tree.root / "bin/devtool"
    script.write_text(script.read_text().replace("/usr/bin/python", "/nonexistent/python"))
    script.write_text(script.read_text().replace("#!/bin/sh", f"#!{shutil.which('sh')}"))
    errors = tree.fails(PYXLA_PYTHON="", PATH=str(tmp_path / "bin"))
    for name in ("python3", "python3.12", "python3.11", "/nonexistent/python3"):
        assert f"  {name} is not there\n" in errors


def test_unknown_set_is_misuse(tree):
    status, _, errors = tree.devtool(PYXLA_SET="rocm")
    assert status == 2
    assert "expected PYXLA_SET=cpu or cuda13, got 'rocm'" in errors and "hint:" in errors


def test_fast_path_costs_little(made):
    made.works()
    environment = made.environment(PYXLA_PYTHON="/nonexistent")

    def best(*command) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            subprocess.run(command, cwd=made.root, env=environment, check=True, capture_output=True)
            times.append(time.perf_counter() - started)
        return min(times)

    overhead = best(made.root / "bin/devtool") - best(made.root / ".venv/bin/python", "-P", "-m", "devtool")
    assert overhead < 0.05, f"bin/devtool adds {overhead * 1000:.0f} ms to devtool"
