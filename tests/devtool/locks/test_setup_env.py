"""bin/devtool and setup_env.py in a small tree: real venvs, pip and uv; only the wheels are tiny."""

import contextlib
import fcntl
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import termios

import pytest

from devtool import setup_uv
from tests.small_tree import NOBODY, PYPROJECT, mounted, read_until, write_wheel


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
def test_two_at_once_share_one_set_up(tree):
    first = tree.start("first")
    read_until(first, "making .venv")
    seen, errors = tree.works("second")
    assert f"waiting for process {first.pid}" in errors
    assert "installing" not in errors, "the second one did the work again"
    assert seen["installed"]["tiny"] == "1.0"
    output, _ = first.communicate()
    assert first.returncode == 0 and json.loads(output)["arguments"] == ["first"]


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


def test_fast_path_costs_little(made):
    made.works()
    environment = made.environment(PYXLA_PYTHON="/nonexistent")

    def processor_time() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def best(*command) -> float:
        times = []
        for _ in range(5):
            before = processor_time()
            subprocess.run(command, cwd=made.root, env=environment, check=True, capture_output=True)
            times.append(processor_time() - before)
        return min(times)

    overhead = best(made.root / "bin/devtool") - best(made.root / ".venv/bin/python", "-P", "-m", "devtool")
    assert overhead < 0.05, f"bin/devtool adds {overhead * 1000:.0f} ms to devtool"
