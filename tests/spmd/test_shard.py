"""pyxla.shard: its errors without a mesh; and the tests of tests/spmd/mesh, in a process with four devices."""

from types import SimpleNamespace

import pytest

import pyxla
from pyxla.errors import ArgumentError, DefinitionError
from tests.conftest import check_on_devices

attention = pyxla.find_op("paged_attention")
norm = pyxla.find_op("rms_norm")
MESH = SimpleNamespace(axis_names=("data", "model"))


@pytest.mark.slow
def test_on_a_mesh_of_four_devices():
    check_on_devices(4, "tests/spmd/mesh")


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
