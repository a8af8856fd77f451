"""`devtool doctor`: a run on this machine, a run in a broken tree, and the checks of libraries and calls."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

from devtool.doctor import python as python_checks
from devtool.doctor.checks import FAILED, NO_GPU, OK, SKIPPED, Doctor, Line, print_lines
from devtool.doctor.python import Problem
from pyxla.library.source_digest import source_digest
from tests.conftest import ROOT, compile_library
from tests.devtool.doctor.one_check import one, plugin, with_torch
from tests.devtool_tree import Tree
from tests.layers.test_imports import LIBRARIES

CUDA = ["CUDA plugin", "pjrt_proxy", "CUDA libraries", "driver", "GPUs"]
CHECKS = ["Python", "wheels", "torch", "torch_xla", "C++ compiler", "nvcc", *CUDA]
HAS_GPU = Doctor()._has_gpu


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
