"""The checks of devtool doctor of what is installed: Python, wheels, compilers and the CUDA plugin."""

import ctypes
import os
import sys

import pytest

from devtool.doctor import python as python_checks
from devtool.doctor.checks import FAILED, OK, Doctor, Line
from devtool.doctor.processes import Processes
from devtool.doctor.python import Problem
from tests.devtool.doctor.one_check import one, plugin, with_torch

TOOLS = ("C++ compiler", "nvcc")


def test_python():
    found = python_checks.python()
    assert found == f"3.{sys.version_info[1]} with libpython3.{sys.version_info[1]}.so.1.0"
    with pytest.raises(Problem, match=r"expected Python 3.11 or 3.12, got 3.13"):
        python_checks.python((3, 13))


def test_python_without_its_shared_library():
    other = 23 - sys.version_info[1]
    try:
        ctypes.CDLL(f"libpython3.{other}.so.1.0")
    except OSError:
        with pytest.raises(Problem, match=rf"expected libpython3.{other}.so.1.0, which torch_xla needs, got"):
            python_checks.python((3, other))
    else:
        pytest.skip("both Pythons are here")


def test_a_build_may_add_to_the_version():
    assert python_checks._same("0.11.0+empty", "0.11.0") and python_checks._same("1.0", "1.0.0")
    assert not python_checks._same("0.11.1+empty", "0.11.0") and not python_checks._same("2.9.1", "2.9.1+cpu")


@pytest.mark.parametrize(
    ("installed", "chosen", "variables"),
    [
        ({"torch": "2.8.0"}, "cpu-torch2.8", None),
        ({"torch": "2.9.1", "cupy-cuda13x": "14"}, "cuda13", None),
        ({"torch": "2.8.0", "vllm": "0.11.0"}, "vllm", "PYXLA_SET=vllm"),
        ({"torch": "2.9.1+cpu", "vllm": "0.11.2"}, "vllm-torch2.9", "PYXLA_SET=vllm PYXLA_TORCH=2.9"),
    ],
)
def test_the_set_of_what_is_installed(environment, tmp_path, installed, chosen, variables):
    """Where bin/devtool has not left its stamp."""
    environment.setattr(sys, "prefix", str(tmp_path))
    environment.setattr(python_checks, "version_of", installed.get)
    assert python_checks.wheel_set() == chosen
    if variables:
        command = f"echo -n > .venv/stamp; {variables} bin/devtool --help"
        assert python_checks.install_command(chosen) == command


def test_wheels_that_differ_from_the_lock(tmp_path):
    """Names and versions are compared as by pip; packages that this Python does not need are ignored."""
    click = python_checks.version_of("click")
    chosen = python_checks.wheel_set()
    lock, dev = tmp_path / f"{chosen}.txt", tmp_path / "dev.txt"
    digest = f"--hash=sha256:{'0' * 64}"
    lock.write_text(f"Click=={click}.0 \\\n    {digest}\nnot-there==1 ; python_version < '3.0' \\\n    {digest}\n")
    dev.write_text("")
    assert python_checks.wheels(tmp_path) == f"1 as locked ({chosen}, dev)"
    dev.write_text("".join(f"{name}==0.0.1 \\\n    {digest}\n" for name in ("rich", "not-there", "jinja2", "pytest")))
    with pytest.raises(Problem) as caught:
        python_checks.wheels(tmp_path)
    found, hint = caught.value.args
    rich, jinja2 = map(python_checks.version_of, ("rich", "jinja2"))
    expected = [f"expected rich 0.0.1, got {rich}", "expected not-there 0.0.1, got none"]
    assert found == "; ".join([*expected, f"expected jinja2 0.0.1, got {jinja2}", "and 1 more"])
    command = f"pip install --require-hashes --no-deps -r requirements/{chosen}.txt -r requirements/dev.txt"
    assert hint == f".venv/bin/python -m {command}"


def tools(doctor: Doctor) -> dict[str, Line]:
    doctor.check("C++ compiler", doctor._compiler)
    doctor.check("nvcc", doctor._nvcc)
    return doctor.lines


def test_compilers_that_are_not_there(environment):
    environment.setenv("CXX", "no-such-compiler")
    environment.setenv("CUDACXX", "/nonexistent/nvcc")
    lines = tools(Doctor())
    assert lines["C++ compiler"].found == "expected a C++20 compiler, got no no-such-compiler"
    assert lines["nvcc"].found == "expected a CUDA compiler, got none at CUDACXX=/nonexistent/nvcc"
    assert (lines["nvcc"].status, lines["nvcc"].hint) == (FAILED, "unset CUDACXX")


def test_compilers_that_do_not_work(environment, tmp_path):
    """A compiler without C++20, and one that crashes."""
    for name, body in (("cxx", 'echo "unknown option $1" >&2; exit 1'), ("nvcc", "kill -ABRT $$")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment.setenv("CXX", str(tmp_path / "cxx"))
    environment.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    lines = tools(Doctor())
    assert [lines[name].status for name in TOOLS] == [FAILED, FAILED]
    assert lines["C++ compiler"].found.endswith(" failed (exit status 1): unknown option -std=c++20")
    assert lines["nvcc"].found == f"{tmp_path}/nvcc --version crashed (SIGABRT)"


API = 'static Api api{80, nullptr, 24, nullptr, 0, %d}; extern "C" Api* GetPjrtApi() { return &api; }'
ABORTS = (
    '__attribute__((constructor)) static void Start() { abort(); } extern "C" Api* GetPjrtApi() { return nullptr; }'
)


def test_plugin_that_is_named(environment, tmp_path):
    environment.setenv("PYXLA_PJRT_PLUGIN", str(plugin(tmp_path, API % 76)))
    doctor = with_torch()
    doctor.check("CUDA plugin", doctor._find_plugin)
    assert one(doctor, "CUDA plugin") == Line("CUDA plugin", OK, "PYXLA_PJRT_PLUGIN, PJRT API 0.76")
    doctor.check("CUDA libraries", doctor._cuda_libraries)
    line = one(doctor, "CUDA libraries")
    assert "for CUDA 13" in line.found if line.status == OK else line.found.startswith("CUDA: library: expected lib")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (API % 10, "CUDA: plugin: expected PJRT API 0."),
        (ABORTS, "the process that checks crashed (SIGABRT)"),
        (None, "OSError: "),
    ],
    ids=["too-old", "aborts", "text"],
)
def test_plugin_that_does_not_fit(environment, tmp_path, code, found):
    path = plugin(tmp_path, code) if code else tmp_path / "text.so"
    if not code:
        path.write_text("not a library")
    environment.setenv("PYXLA_PJRT_PLUGIN", str(path))
    with pytest.raises(Problem) as caught:
        Processes(timeout=120).ask("api_version", hint="this")
    assert caught.value.args[0].startswith(found) and caught.value.args[1]
