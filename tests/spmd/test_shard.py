"""pyxla.shard: its errors without a mesh; and the tests of tests/spmd/mesh, in a process with four devices."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import pyxla
from pyxla.errors import ArgumentError, DefinitionError
from tests.conftest import ROOT

attention = pyxla.find_op("paged_attention")
norm = pyxla.find_op("rms_norm")
MESH = SimpleNamespace(axis_names=("data", "model"))


@pytest.mark.slow
def test_on_a_mesh_of_four_devices():
    """torch_xla counts its devices once per process, and SPMD cannot be turned off again."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
    command = [sys.executable, "-P", "-m", "pytest", "-p", "pyxla.pytest_plugin", "-q", "tests/spmd/mesh"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout and "skipped" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((attention, "rows", MESH, "model"), "paged_attention: by: expected one of: heads, got 'rows'"),
        ((norm, "rows", SimpleNamespace(axis_names=None)), "rms_norm: mesh: expected axes with names, got none"),
        ((norm, "rows", MESH), "rms_norm: axis: expected one of: data, model, got None"),
        ((norm, "rows", MESH, "heads"), "rms_norm: axis: expected one of: data, model, got 'heads'"),
        ((norm, "rows", MESH, "model"), "rms_norm: mesh: expected torch_xla in SPMD mode, got one device per process"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ArgumentError) as caught:
        pyxla.shard(*arguments)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"operands": {"eps": 0}, "results": [0]}, "rms_norm: sharding: expected one of x, weight, got eps"),
        ({"operands": {"x": 0}}, "rms_norm: sharding: expected a dimension for each of 1 results, got 0"),
    ],
)
def test_a_declaration_that_does_not_fit_the_op(declared, message):
    with pytest.raises(DefinitionError) as caught:
        norm.register_sharding("wrong", **declared)
    assert caught.value.message == message
    assert "wrong" not in norm.shardings
