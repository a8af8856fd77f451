"""bin/devtool and setup_env.py in a small tree: real venvs, pip, uv and kills; only the wheels are tiny."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from devtool import setup_uv
from tests.small_tree import PYPROJECT, Tree, kill_alone, mounted, read_until, write_sdist, write_wheel


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Tree:
    """A tree whose .venv is complete, before and after each test."""
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
    assert "\n + devthing==1.0\n" in errors and "\n + tiny==1.0\n" in errors
    assert list(made.root.glob(".venv/lib/python3*/site-packages/__pycache__/tiny.*.pyc"))
    # The fetched wheels stay for the next checkout.
    assert (made.root / ".cache/uv/CACHEDIR.TAG").exists()


def test_second_call_takes_the_fast_path(made):
    # A set-up would fail without a Python and print an error.
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


@pytest.mark.slow
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
    _, errors = process.communicate()
    assert process.returncode == 130 and "Traceback" not in errors
    assert (tree.root / ".venv/stamp").read_text() == ""


@pytest.mark.slow
def test_two_at_once_share_one_set_up(tree):
    first = tree.start("first")
    read_until(first, "making .venv")
    seen, errors = tree.works("second")
    assert f"waiting for process {first.pid}" in errors
    assert "installing" not in errors, "the second one did the work again"
    assert seen["installed"]["tiny"] == "1.0"
    output, _ = first.communicate()
    assert first.returncode == 0 and json.loads(output)["arguments"] == ["first"]


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


# Nothing listens on port 9 (discard).
NOBODY = "http://127.0.0.1:9/simple"


def test_warnings_of_pip_go_to_the_log(tree):
    """Those that a user can do nothing about; if pip fails, the screen has them too."""
    places = {"PIP_FIND_LINKS": f"{tree.wheels.as_uri()} /nonexistent", "UV_FIND_LINKS": tree.wheels.as_uri()}
    _, errors = tree.works(**places)
    warning = "WARNING: Location '/nonexistent' is ignored"
    assert "WARNING" not in errors and "\n + tiny==1.0\n" in errors
    log = (tree.root / ".venv/set-up.log").read_text()
    assert warning in log and "\n + tiny==1.0\n" in log
    (tree.root / ".venv/stamp").write_text("")
    next(tree.wheels.glob("uv-*.whl")).unlink()
    assert warning in tree.fails(**places)


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


@pytest.mark.slow
def test_mirror_that_pip_alone_was_told_of_is_uvs_too(tree):
    """pip's configuration file names an index and an extra one; neither has all packages."""
    for name in ("first", "second"):
        (tree.root / name).mkdir()
    for path in tree.wheels.glob("*.whl"):
        name = path.name.split("-")[0]
        folder = tree.root / ("second" if name == "tiny" else "first") / name
        folder.mkdir()
        path.rename(folder / path.name)
        (folder / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')
    (tree.root / "pip.conf").write_text(
        f"[global]\nindex-url = {NOBODY}\n[install]\nindex-url = {(tree.root / 'first').as_uri()}\n"
        f"extra-index-url =\n  {(tree.root / 'second').as_uri()}\n"
    )
    quiet = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": str(tree.root / "pip.conf")}
    seen, _ = tree.works(**quiet)
    assert seen["installed"].items() >= {"tiny": "1.0", "devthing": "1.0"}.items()


def test_what_pip_was_told_becomes_uvs_unless_uv_was_told():
    listed = (
        ":env:.find-links='a b'\n:env:.index-url='http://env'\nglobal.index-url='http://global'\n"
        "global.retries='7'\ninstall.retries='8'\nwheel.timeout='1'\nglobal.no-index='true'\n"
        "global.extra-index-url='\\nhttp://one\\nhttp://two'\nglobal.keyring-provider='import'\n"
    )
    settings = setup_uv.pip_settings(listed)
    env, options = setup_uv.for_uv(settings, {"UV_INDEX_URL": "http://uv", "UV_OVERRIDE": "x", "HOME": "/h"})
    env.pop("UV_SYSTEM_CERTS", None)  # where the machine has some
    assert env == {
        "HOME": "/h",
        "UV_INDEX_URL": "http://uv",
        "UV_INDEX": "http://one http://two",
        "UV_FIND_LINKS": "a,b",
        "UV_HTTP_RETRIES": "8",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert options == ["--no-index"]
    assert setup_uv.for_uv(setup_uv.pip_settings(listed), {})[0]["UV_DEFAULT_INDEX"] == "http://env"


@pytest.mark.slow
def test_cache_that_cannot_be_written_is_done_without(tree, tmp_path):
    with mounted(tmp_path / "home", "size=1m", flags=1):  # 1: read-only
        seen, _ = tree.works(HOME=str(tmp_path / "home"))
    assert seen["installed"]["tiny"] == "1.0"
    assert not (tree.root / ".venv/uv-cache").exists()


@pytest.mark.slow
def test_silence_is_broken(tree):
    script = tree.root / "devtool/setup_env.py"
    script.write_text(script.read_text().replace("REPORT_S = 30", "REPORT_S = 0.2"))
    assert re.search(r"pip is still running \(\d+ s\)", tree.works()[1])


@pytest.mark.slow
def test_terminal_shows_uvs_progress(tree):
    environment, (reader, writer) = tree.environment(TERM="xterm"), os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, 40, 0, 0))
    done = subprocess.run([tree.root / "bin/devtool"], env=environment, stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):  # its end
        while chunk := os.read(reader, 4096):
            shown += chunk
    os.close(reader)
    assert done.returncode == 0, shown
    assert re.search(rb"\x1b\[[\d;]*m.*Installed .* packages", shown), shown


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


def test_unknown_set_is_misuse(tree):
    status, _, errors = tree.devtool(PYXLA_SET="rocm")
    assert status == 2
    assert "expected PYXLA_SET=cpu, cuda13, vllm or vllm-cuda13, got 'rocm'" in errors and "hint:" in errors


@pytest.mark.parametrize("name", ["vllm", "vllm-cuda13"])
def test_sets_with_vllm_are_for_torch_2_8(tree, name):
    status, _, errors = tree.devtool(PYXLA_SET=name, PYXLA_TORCH="2.9")
    assert status == 2
    assert f"expected PYXLA_TORCH=2.8 with PYXLA_SET={name}, got '2.9'" in errors
    assert "hint: unset PYXLA_TORCH" in errors


def test_a_set_with_vllm_builds_it_from_source(tree):
    """Without CUDA code, with the packages that are installed by then; the index has a wheel of it too."""
    wheel = write_wheel(tree.wheels, "vllm", "1.0")
    digest = re.search(r"--hash=\S+", wheel)[0]
    source = write_sdist(tree.wheels, "vllm", "1.0", "VLLM_TARGET_DEVICE")
    built = source.replace("    --hash", f"    {digest} \\\n    --hash")
    tree.lock("vllm-cuda13", write_wheel(tree.wheels, "tiny", "1.0"), built)
    seen, errors = tree.works(PYXLA_SET="vllm-cuda13")
    assert seen["installed"].items() >= {"tiny": "1.0", "vllm": "1.0+empty"}.items(), errors
    assert tree.works(PYXLA_SET="vllm-cuda13", PYXLA_PYTHON="/nonexistent")[1] == ""
    tree.lock("vllm-cuda13", write_wheel(tree.wheels, "tiny", "2.0"), built)
    seen, _ = tree.works(PYXLA_SET="vllm-cuda13")
    assert seen["installed"].items() >= {"tiny": "2.0", "vllm": "1.0+empty"}.items()
    # Another set has no use for it.
    assert "vllm" not in tree.works(PYXLA_SET="cpu")[0]["installed"]


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
