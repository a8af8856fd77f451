"""`devtool doctor`: a run on this machine, a run in a broken tree, and each failure separately."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from devtool.doctor import python as python_checks
from devtool.doctor.checks import FAILED, NO_GPU, OK, SKIPPED, Doctor, Line, print_lines
from devtool.doctor.processes import Processes
from devtool.doctor.python import Problem
from pyxla.library.source_digest import source_digest
from tests.conftest import ROOT, compile_library
from tests.devtool_tree import Tree
from tests.layers.test_imports import LIBRARIES

CUDA = ["CUDA plugin", "pjrt_proxy", "CUDA libraries", "driver", "GPUs"]
CHECKS = ["Python", "wheels", "torch", "torch_xla", "C++ compiler", "nvcc", *CUDA]
HAS_GPU = Doctor()._has_gpu
TOOLS = ("C++ compiler", "nvcc")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The environment of a user who has set nothing, without XLA_FLAGS, which pytest's plugin sets."""
    for name in ("LD_PRELOAD", "XLA_FLAGS", "PYXLA_PJRT_PLUGIN", "CXX", "CUDACXX", "PYXLA_NIX_SHELL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The output in a tree where the library is stale, torch_xla raises, and two variables name missing files."""
    tree = Tree(tmp_path_factory.mktemp("doctor"))
    shutil.copytree(ROOT / "requirements", tree.root / "requirements")
    tree.library("simple_add").parent.mkdir(parents=True)
    for name in ("libsimple_add.so", "libsimple_add.json"):
        shutil.copy(ROOT / "build/lib" / name, tree.root / "build/lib")
    with (tree.kernels / "simple_add/simple_add.h").open("a") as header:
        header.write("// changed\n")
    (tree.root / "first").mkdir()
    (tree.root / "first/torch_xla.py").write_text("raise ImportError('_XLAC.so: undefined symbol: _ZN3foo')")
    path = f"{tree.root / 'first'}:{tree.root / 'site'}"
    return tree.run("doctor", PYTHONPATH=path, LD_PRELOAD="libgone.so", PYXLA_PJRT_PLUGIN="/nonexistent/plugin.so")


def row(table: str, check: str) -> tuple[str, str]:
    """Status, finding and hint of a line of the table."""
    lines = [line.strip() for line in table.splitlines()]
    (number,) = [n for n, line in enumerate(lines) if line.startswith(f"{check} ")]
    hint = lines[number + 1]
    return " ".join(lines[number].removeprefix(check).split()), hint if hint.startswith("hint: ") else ""


def one(doctor: Doctor, check: str) -> Line:
    return doctor.lines[check]


def with_torch() -> Doctor:
    """Runs one check without the earlier ones."""
    doctor = Doctor()
    doctor.lines["torch"] = Line("torch", OK, "")
    return doctor


def test_this_machine(capsys):
    """Runs all checks; then shows the same lines as a table."""
    command = [sys.executable, "-P", "-m", "devtool", "doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    objects = json.loads(done.stdout)
    assert [set(o) for o in objects] == [{"check", "status", "found", "hint"}] * len(objects)
    lines = [Line(**o) for o in objects]
    assert (done.returncode, [line for line in lines if line.status == FAILED]) == (0, []), done.stderr
    found = {line.check: line for line in lines}
    ops = [f"op {folder}" for folder in LIBRARIES]
    assert list(found) == [*CHECKS, "ops", *ops, "LD_PRELOAD", "call on CPU", "call on CUDA"]
    assert found["ops"].found == f"{len(LIBRARIES)} folders in kernels/"
    assert found["torch_xla"].found == version("torch_xla") and found["LD_PRELOAD"].found == "empty"
    assert found["call on CPU"].found == "simple_add: a custom call in the HLO, its numbers are right"
    assert found["CUDA plugin"].found == "jax-cuda13-pjrt 0.11.2, PJRT API 0.115"
    if not HAS_GPU and python_checks.wheel_set() == "cpu":
        skipped = {line.check: line.found for line in lines if line.status == SKIPPED}
        assert skipped == dict.fromkeys(["CUDA libraries", "driver", "GPUs", "call on CUDA"], NO_GPU)

    print_lines(lines)
    table = capsys.readouterr().out
    assert [row(table, line.check) for line in lines] == [(f"{line.status} {line.found}", "") for line in lines]


def test_broken_machine(broken):
    """Each failure is one line with its fix; checks that depend on it are skipped; the others still run."""
    assert (broken.returncode, broken.stderr.replace("ERROR: ld.so", "").count("Traceback")) == (1, 0)
    status, hint = row(broken.stdout, "torch_xla")
    assert status == "failed ImportError: _XLAC.so: undefined symbol: _ZN3foo"
    pair = f"torch_xla {version('torch_xla')} wants torch {version('torch').partition('+')[0]}"
    assert hint.startswith(f"hint: {pair}: .venv/bin/python -m pip install --require-hashes")
    status, hint = row(broken.stdout, "LD_PRELOAD")
    assert status.startswith("failed expected libraries that can be loaded, got libgone.so: cannot open shared object")
    assert hint == "hint: take it out of LD_PRELOAD"
    status, hint = row(broken.stdout, "CUDA plugin")
    assert status.startswith("failed CUDA: PYXLA_PJRT_PLUGIN: expected ") and "/nonexistent/plugin.so" in status
    assert "unset" in hint
    assert row(broken.stdout, "CUDA libraries")[0] == "skipped needs CUDA plugin"
    status, hint = row(broken.stdout, "op simple_add")
    assert status.startswith("failed stale: simple_add: library: expected source digest ")
    assert hint == "hint: devtool build simple_add --clean"
    assert row(broken.stdout, "call on CPU")[0] == "skipped needs torch_xla"
    for check in ("Python", "wheels", "torch", "C++ compiler", "ops"):
        assert row(broken.stdout, check)[0].startswith("ok ")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the process that checks crashed (SIGSEGV)"),
        ("import sys; sys.exit('enough')", "the process that checks failed (exit status 1): enough"),
        ("import time; time.sleep(60)", "expected an answer within 0.5 s, got none"),
        ("print('{}'); raise OSError(5, 'bad disk')", "OSError: [Errno 5] bad disk"),
        ("raise ValueError('first\\nsecond')", "ValueError: first"),
    ],
    ids=["signal", "exit", "hang", "error", "long-error"],
)
def test_probe_that_fails(environment, tmp_path, code, found):
    (tmp_path / "torch.py").write_text(code)
    environment.setenv("PYTHONPATH", str(tmp_path))
    doctor = Doctor(timeout=0.5 if "sleep" in code else 60)
    doctor.check("torch", doctor._torch)
    assert (one(doctor, "torch").status, one(doctor, "torch").found) == (FAILED, found)
    assert one(doctor, "torch").hint.startswith("truncate -s 0 .venv/stamp; bin/devtool")
    doctor.cuda()
    doctor.ops()
    assert one(doctor, "ops") == Line("ops", SKIPPED, "needs torch")


def test_a_check_that_raises_is_a_line():
    doctor = Doctor()
    doctor.check("a", lambda: 1 // 0)
    doctor.check("b", lambda: "fine")
    doctor.check("c", lambda: "fine", "a")
    assert [(line.check, line.status) for line in doctor.lines.values()] == [("a", FAILED), ("b", OK), ("c", SKIPPED)]
    assert "ZeroDivisionError" in one(doctor, "a").found and one(doctor, "a").hint


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


def plugin(place: Path, code: str) -> Path:
    """A PJRT plugin of a few lines."""
    head = (
        "#include <cstddef>\n#include <cstdlib>\nstruct Api { size_t size; void* e; size_t vs; void* ve; int a, b; };"
    )
    (place / "plugin.cc").write_text(f"{head}\n{code}\n")
    command = ["g++", "-shared", "-fPIC", "-o", place / "plugin.so", place / "plugin.cc"]
    subprocess.run(command, check=True)
    return place / "plugin.so"


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


def test_library_without_code_for_the_gpu():
    doctor = with_torch()
    doctor.ops(capabilities=[(9, 0), (6, 1)])
    line = one(doctor, "op simple_add")
    assert line.status == FAILED and line.found.startswith(
        "simple_add: CUDA architecture: expected code for sm_61, got"
    )
    assert line.hint


def test_fresh_clone(monkeypatch):
    """Nothing has failed where nothing is built yet: one line says so, for all ops."""
    doctor = with_torch()

    def ask(probe: str, *arguments, hint: str):
        if probe == "proxy":
            raise Problem(
                "CUDA: pjrt_proxy: expected pyxla_pjrt_proxy.so, got none in /clone/build/lib", "devtool build"
            )
        return [{"op": op, "state": "not built"} for op in ("rms_norm", "simple_add")]

    monkeypatch.setattr(doctor._processes, "ask", ask)
    doctor.ops()
    doctor.check("pjrt_proxy", doctor._proxy)
    doctor.check("call on CPU", lambda: doctor._call("CPU"), "op simple_add")
    assert list(doctor.lines.values())[1:] == [
        Line("ops", OK, "2 folders in kernels/"),
        Line("libraries", SKIPPED, "not built yet: rms_norm, simple_add", "devtool build"),
        Line("pjrt_proxy", SKIPPED, "not built yet"),
        Line("call on CPU", SKIPPED, "needs op simple_add"),
    ]


def test_one_op_that_is_not_built(monkeypatch):
    built = {"op": "rms_norm", "state": "built", "misfit": None, "platforms": ["Host"], "architectures": []}
    doctor = with_torch()
    monkeypatch.setattr(doctor._processes, "ask", lambda *_, hint: [built, {"op": "mine", "state": "not built"}])
    doctor.ops()
    assert one(doctor, "op rms_norm").status == OK
    assert one(doctor, "libraries") == Line("libraries", SKIPPED, "not built yet: mine", "devtool build mine")


def test_preloaded_file_that_is_no_library(environment, tmp_path):
    (tmp_path / "text.so").write_text("not a library")
    environment.setenv("LD_PRELOAD", f"{ROOT}/build/lib/libsimple_add.so {tmp_path}/text.so")
    doctor = with_torch()
    doctor.check("LD_PRELOAD", doctor._ld_preload)
    line = one(doctor, "LD_PRELOAD")
    assert line.status == FAILED and line.found.endswith(f"got {tmp_path}/text.so: file too short")
    assert "LD_PRELOAD" not in doctor._processes.environment()


def test_call_whose_numbers_are_wrong(environment, tmp_path):
    """A foreign library is preloaded, and a simple_add that subtracts but claims to be built from these sources."""
    source = (ROOT / "kernels/simple_add/simple_add_ffi.cc").read_text()
    assert source.count("+ scale *") == 1
    digest = source_digest(ROOT / "kernels", "simple_add")
    stamp = f'extern const char pyxla::kSourceDigest[] = "{digest}";\n'
    (tmp_path / "wrong.cc").write_text(source.replace("+ scale *", "- scale *") + stamp)
    library = compile_library(tmp_path / "wrong.cc", tmp_path / "libsimple_add.so")
    environment.setenv("LD_PRELOAD", f"{library}:{plugin(tmp_path, 'int nothing;')}")
    doctor = with_torch()
    doctor.check("LD_PRELOAD", doctor._ld_preload)
    assert one(doctor, "LD_PRELOAD") == Line("LD_PRELOAD", OK, "2 libraries; ops: simple_add")
    doctor.check("call on CPU", lambda: doctor._call("CPU"))
    line = one(doctor, "call on CPU")
    assert (line.status, line.found) == (FAILED, "expected 1000 right numbers, got 999 wrong")
    assert line.hint == "devtool test simple_add"
