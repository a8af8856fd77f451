"""A set-up that is killed, interrupted or fails: the next call repairs it, and errors name the fix."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.small_tree import NOBODY, Tree, kill_alone, mounted, read_until, write_wheel


@pytest.mark.slow
def test_killed_anywhere_is_repaired_by_the_next_call(tree):
    # Long enough to be killed while uv writes it.
    tree.lock("cpu", *(write_wheel(tree.wheels, f"tiny{i}", "1.0", 1 << 24) for i in range(8)))
    points = ("making .venv", "installing the locked uv", "installing the locked wheels", "Resolved", "Prepared")
    points += ("Installed", "compiling", "the project")
    for number, point in enumerate(points):
        process = tree.start(UV_LINK_MODE="copy")
        lines = read_until(process, point)
        assert ("half-made" in lines) == (number > 0), lines
        kill_alone(process, tree)
    seen, errors = tree.works()
    assert "half-made" in errors
    assert {f"tiny{i}" for i in range(8)} <= set(seen["installed"])
    assert tree.works(PYXLA_PYTHON="/nonexistent")[1] == ""


@pytest.mark.slow
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
    read_until(process, "installing the locked uv")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert (tree.root / ".venv/stamp").read_text() == ""


STARTED = "stderr=writer, pass_fds=[self.lock], preexec_fn=lambda: "


@pytest.mark.parametrize(
    ("line", "interrupted"),
    [
        ("listener.start()", "(listener.start(), os.kill(me, signal.SIGINT))"),
        (f"{STARTED}die_with(me)", f"{STARTED}(os.kill(me, signal.SIGINT), die_with(me))"),
        ("os.close(writer)", "(os.kill(me, signal.SIGINT), os.close(writer))"),
    ],
    ids=["before the child", "while it starts", "while it ends"],
)
def test_interrupt_at_each_moment_of_a_child(tree, line, interrupted):
    """Between the listener's start and the child's, nobody closed the listener's pipe, and set-up waited for ever.

    While the child started, set-up did not know it yet, and waited until it had done all its work.
    """
    script = tree.root / "devtool/setup_env.py"
    before, text, after = script.read_text().partition(line)
    assert text == line and line not in after
    script.write_text(before + interrupted + after)
    status, output, errors = tree.devtool()
    assert (status, output) == (130, "") and "Traceback" not in errors
    assert errors.endswith("devtool: set-up: interrupted; the next call starts over\n")
    assert (tree.root / ".venv/bin/uv").exists() == (line == "os.close(writer)")


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_wrong_hash_fails_and_is_not_complete(tree, tool):
    """pip installs uv, and uv installs the rest."""
    wrong = (tree.tools["uv"] if tool == "pip" else tree.tools["pip"]).split(" ")[0] + f" --hash=sha256:{'0' * 64}\n"
    tree.lock("dev", wrong, *(tree.tools["uv"] for _ in range(tool == "uv")))
    errors = tree.fails()
    assert f"{tool} failed: a package does not match its locked hash" in errors
    assert "hint: pip cache purge; uv cache clean" in errors
    assert (tree.root / ".venv/stamp").read_text() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "message"), [("uv", "Hashes are required"), ("pip", "all requirements must have a hash")]
)
def test_lock_without_hash_is_refused(tree, tool, message):
    """It is refused even if the user's settings of uv allow it."""
    lines = {**tree.tools, tool: tree.tools[tool].split(" ")[0] + "\n"}
    tree.lock("dev", *lines.values())
    (tree.root / "uv.toml").write_text("[pip]\nrequire-hashes = false\nverify-hashes = false\n")
    assert message in tree.fails(UV_NO_VERIFY_HASHES="1", UV_CONFIG_FILE=str(tree.root / "uv.toml"))


@pytest.mark.slow
@pytest.mark.parametrize("told", ["pip", "uv"])
def test_no_network_is_named(tree, told):
    index = {
        "pip": {"PIP_FIND_LINKS": "", "PIP_INDEX_URL": NOBODY, "PIP_RETRIES": "1"},
        "uv": {"PIP_INDEX_URL": tree.wheels.as_uri(), "UV_DEFAULT_INDEX": NOBODY, "UV_HTTP_RETRIES": "0"},
    }
    errors = tree.fails(PIP_NO_INDEX="", **index[told])
    assert f"{told} failed: the package index cannot be reached" in errors
    assert "PIP_INDEX_URL or UV_DEFAULT_INDEX" in errors


@pytest.mark.slow
@pytest.mark.parametrize(("package", "tool"), [("uv", "pip"), ("devthing", "uv")])
def test_package_that_the_index_lacks_is_named(tree, package, tool):
    next(tree.wheels.glob(f"{package}-*.whl")).unlink()
    errors = tree.fails()
    assert f"{tool} failed: the package index lacks a locked package" in errors


def test_lock_without_uv_is_named(tree):
    tree.lock("dev", tree.tools["pip"])
    assert "expected uv in " in tree.fails()


def test_file_system_without_programs_is_named(tree):
    no_programs = 8
    with mounted(tree.root / ".venv", "size=100m", flags=no_programs):
        assert "bin/uv cannot be executed\nhint: mount its file system without noexec" in tree.fails()


def test_foreign_venv_is_not_touched(tree):
    (tree.root / ".venv").mkdir()
    (tree.root / ".venv/mine").write_text("precious")
    errors = tree.fails()
    assert "expected a .venv that devtool made" in errors and "hint: mv " in errors
    assert (tree.root / ".venv/mine").read_text() == "precious"


def test_venv_that_is_a_link_is_not_touched(tree, tmp_path):
    (tree.root / ".venv").symlink_to(tmp_path)
    assert "got a link or a file" in tree.fails()


@pytest.mark.slow
def test_full_disk_is_named_and_not_complete(tree):
    tree.lock("cpu", write_wheel(tree.wheels, "tiny", "1.0", 1 << 26))
    with mounted(tree.root / ".venv", "size=80m"):
        errors = tree.fails()
        assert "the disk is full" in errors and "hint: free some space" in errors
        assert (tree.root / ".venv/stamp").read_text() == ""


def test_read_only_tree_is_named(tmp_path):
    with mounted(tmp_path / "mount", "size=100m") as libc:
        tree = Tree(tmp_path / "mount/tree")
        remount_read_only = 32 | 1
        assert libc.mount(b"tmpfs", str(tmp_path / "mount").encode(), b"tmpfs", remount_read_only, b"") == 0
        errors = tree.fails()
    assert "the folder is not writable (Read-only file system" in errors and ".venv.lock" in errors


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
