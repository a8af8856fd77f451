"""XLA's dump of what it compiles: in any process, for a block, without changing the user's settings."""

import os
import subprocess
import sys

import pytest

import pyxla
from pyxla.hlo import dump
from pyxla.inspection import inspection
from pyxla.torch_xla_patches import debug_flags
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("probe_library")

SCRIPT = """
import os, sys, pathlib, tempfile
import torch, torch_xla
import torch_xla.debug.metrics as metrics
import pyxla
from pyxla.hlo import dump

def compiled():
    return (metrics.metric_data("CompileTime") or [0])[0]

def dumps():
    return len(list(pathlib.Path(tempfile.gettempdir()).glob("pyxla-hlo-*")))

x = torch.arange(6.0).to(torch_xla.device())
flags = os.environ.get("XLA_FLAGS")
step = lambda x: x.sin() * x
step(x).cpu()
before = compiled()
seen = pyxla.inspect(lambda x: x.cos() * x, x)
print(len(seen.modules), compiled() - before, "cosine" in seen.modules[0].before, seen.modules[0].memory.arguments)
with dump.dumping() as outer, dump.dumping() as inner:
    print(outer == inner, outer)
(x.tan() * x).cpu()
print(dumps(), os.environ.get("XLA_FLAGS") == flags, "XLA_AUTO_SPMD_MESH" in os.environ)
"""


def test_process_that_has_set_no_flags(tmp_path):
    """XLA read its flags long before; they change only for the block, and no file is left."""
    environment = {n: v for n, v in os.environ.items() if n != "XLA_FLAGS"} | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert (first, third) == ("1 1 True 24", "0 True False")
    assert second.startswith(f"True {tmp_path}/pyxla-hlo-")


def test_flags_that_name_a_folder_are_left_alone(tmp_path):
    """The second process writes modules with the same names as the first; they must not be taken for old ones."""
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    environment = os.environ | {"XLA_FLAGS": flags, "TMPDIR": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["1 1 True 24", f"True {tmp_path}", "0 True False"]
    assert len(list(tmp_path.glob("*before_optimizations.txt"))) >= 3


def test_named_folder_on_cuda_is_an_option_too(tmp_path, monkeypatch):
    """So that pjrt_proxy compiles a graph that it has in a file: XLA writes nothing of a graph that is loaded."""
    given = []
    monkeypatch.setattr(dump.platform, "device_type", lambda: "CUDA")
    monkeypatch.setattr(dump.proxy, "set_compile_options", given.append)
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path}")
    with dump.dumping() as outer, dump.dumping() as inner:
        assert outer == inner == tmp_path
        assert len(given) == 1 and str(tmp_path).encode() in given[0]
    assert given[1:] == [b""]
    assert tmp_path.exists()


def test_files_beside_a_module_that_are_older_than_it(tmp_path):
    """XLA has not finished this module; the older file with its name is from another process."""
    before, after = (tmp_path / f"module_0000.f.{part}_optimizations.txt" for part in ("before", "after"))
    for path in (before, after):
        path.write_text("HloModule f\n\nENTRY e {\n  ROOT p = f32[2]{0} parameter(0)\n}\n")
    assert len(inspection.read_files([before, after])) == 1
    os.utime(after, (1000, 1000))
    assert inspection.read_files([before, after]) == []


def test_torch_xla_without_the_parser_of_flags_says_so(monkeypatch):
    """As a stripped one is; no function is called then."""
    for name in ("_PARSE", "_PARSE_LIST"):
        monkeypatch.setattr(debug_flags, name, "no_such_function")
    message = (
        r"hlo: torch_xla: expected a library with the symbol no_such_function, got none in .*\n\nhint: call pyxla\.hlo"
    )
    with pytest.raises(pyxla.PyxlaError, match=message):
        debug_flags.set_flags("--xla_dump_to=")


def test_option_of_one_compilation_is_the_one_that_xla_reads():
    """Compared with the bytes that jaxlib itself writes after the options without overrides."""
    from jaxlib._jax import CompileOptions

    plain, ours = CompileOptions(), CompileOptions()
    flags = {"xla_dump_hlo_as_text": True, "xla_dump_to": "/a/folder" * 20, "xla_gpu_autotune_level": 0}
    ours.env_option_overrides = list(flags.items())
    assert dump.overrides(**flags) == ours.SerializeAsString().removeprefix(plain.SerializeAsString())
