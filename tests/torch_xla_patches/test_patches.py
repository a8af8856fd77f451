"""What torch_xla does without each patch. If a test fails, torch_xla has changed and the patch of that name can go.

tests/spmd/mesh/test_compiled_on_mesh.py shows the effect of the two patches in `mesh`, and tests/lowering/test_lower.py
that of `backward_compiler`.
"""

import ctypes
import os
import subprocess
import sys

import pytest
import pyxla_torch_backend
import torch
import torch_xla
from torch_xla.debug import metrics

from pyxla import torch_xla_patches
from pyxla.errors import PyxlaError
from pyxla.hlo import dump
from pyxla.torch_xla_patches import symbols
from pyxla.torch_xla_patches.compiled_graphs import graphs_of_compiled_functions
from pyxla.torch_xla_patches.fallback_counters import FallbackCounter
from pyxla.torch_xla_patches.mesh import apply_mesh_patches

DEVICE = torch_xla.device()


@pytest.mark.parametrize(
    "patch", [apply_mesh_patches.__wrapped__, FallbackCounter, graphs_of_compiled_functions], ids=lambda p: p.__name__
)
def test_another_version_is_refused(patch, monkeypatch):
    monkeypatch.setattr(torch_xla_patches, "installed_versions", lambda: ("2.10.0", "2.10.0"))
    tried = r"torch 2\.9\.1 and torch_xla 2\.9\.0 or torch 2\.8\.0 and torch_xla 2\.8\.1"
    with pytest.raises(PyxlaError, match=rf"expected {tried}, the pairs that were tried, got torch 2\.10\.0 and"):
        patch()


@pytest.mark.parametrize(
    ("installed", "command"),
    [
        (("2.8.0", "2.9.0"), "pip install torch_xla==2.8.1"),
        (("2.9.0", "2.8.1"), "pip install torch_xla==2.9.0"),
        (("2.9.1", "none"), "pip install torch_xla==2.9.0"),
        (("2.7.0", "2.7.0"), "pip install torch==2.9.1 torch_xla==2.9.0"),
    ],
)
def test_hint_keeps_the_torch_that_is_there(installed, command, monkeypatch):
    """Nothing that pip knows ties torch_xla to a torch."""
    monkeypatch.setattr(torch_xla_patches, "installed_versions", lambda: installed)
    with pytest.raises(PyxlaError) as error:
        torch_xla_patches.release()
    assert error.value.hint == command


def test_faster_import_is_for_the_same_pairs():
    """torch_backend states them again: it runs before pyxla can be imported."""
    assert pyxla_torch_backend._PAIRS == torch_xla_patches.PAIRS


def test_symbol_that_torch_xla_hides_is_found():
    """The address is that of the exported function where there is one, and in the file's table otherwise."""
    library = ctypes.CDLL(torch_xla._XLAC.__file__)
    exported = ctypes.cast(library.PyInit__XLAC, ctypes.c_void_p).value
    assert symbols.address("test", "PyInit__XLAC") == exported
    path = torch_xla._XLAC.__file__
    assert symbols.address("test", "no_such", "PyInit__XLAC") == exported
    assert symbols._value(path, "no_such") is None and symbols._value(path, "PyInit__XLAC") > 0
    with pytest.raises(PyxlaError, match=r"test: torch_xla: expected a library with the symbol no_such, got none in "):
        symbols.address("test", "no_such")


def test_library_without_the_table_of_symbols(tmp_path):
    """As after `strip`: nothing is found, so nothing is called."""
    library = tmp_path / "library.so"
    source = "static int hidden(void) { return 42; }\nint shown(void) { return hidden(); }\n"
    subprocess.run(
        ["gcc", "-O0", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True
    )
    assert symbols._value(str(library), "hidden") > 0
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", library, "-o", stripped], check=True)
    assert symbols._value(str(stripped), "hidden") is None


def test_fallback_counters_are_cleared_by_torch_compile(monkeypatch):
    cleared, clear = [], metrics.clear_counters
    monkeypatch.setattr(metrics, "clear_counters", lambda: (cleared.append(1), clear()))
    torch._dynamo.reset()
    torch.compile(lambda x: x + 3, backend="openxla")(torch.ones(2, device=DEVICE))
    assert cleared


def test_compiled_graphs_are_run_without_the_cache(monkeypatch):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 5 - 2, backend="openxla")
    x = torch.ones(3, device=DEVICE)
    torch_xla.sync(wait=True)

    def compilations_of_a_call() -> int:
        before = dump.compilations()
        compiled(x).cpu()
        return dump.compilations() - before

    assert compilations_of_a_call() > 0
    monkeypatch.setenv("XLA_AUTO_SPMD_MESH", "another key")
    assert compilations_of_a_call() == 0
    assert any(graphs_of_compiled_functions())
    for graphs in graphs_of_compiled_functions():
        graphs.clear()
    assert compilations_of_a_call() > 0


def test_debug_flags_are_read_once(tmp_path):
    script = """
import os, sys, torch, torch_xla
(torch.ones(2, device=torch_xla.device()) + 1).cpu()
os.environ["XLA_FLAGS"] = f"--xla_dump_to={sys.argv[1]}"
(torch.ones(2, device=torch_xla.device()) + 2).cpu()
"""
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, env={**os.environ, "PJRT_DEVICE": "CPU"})
    assert list(tmp_path.iterdir()) == []
