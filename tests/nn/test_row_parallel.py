"""Where fused_all_reduce_rms_norm adds the devices' products; what it computes is in tests/spmd/mesh."""

from types import SimpleNamespace

import pytest
import torch_xla.runtime

from pyxla.nn.row_parallel import has_fused_sums

MESH = SimpleNamespace(shape=lambda: {"model": 2})


@pytest.mark.parametrize(
    ("device", "allocator", "given", "expected"),
    [
        ("CPU", None, None, True),
        ("CUDA", None, None, False),  # XLA would capture the step's calls anew in each step
        ("CUDA", "bfc", None, False),
        ("CUDA", "vmm", None, True),
        ("CUDA", "vmm", False, False),
        ("CUDA", None, True, True),
    ],
)
def test_where_the_op_adds(monkeypatch, device, allocator, given, expected):
    monkeypatch.setattr(torch_xla.runtime, "device_type", lambda: device)
    monkeypatch.delenv("PYXLA_ALLOCATOR", raising=False)
    if allocator:
        monkeypatch.setenv("PYXLA_ALLOCATOR", allocator)
    assert has_fused_sums(MESH, given) is expected


@pytest.mark.parametrize(("devices", "expected"), [(1, False), (2, True), (8, True), (9, False)])
def test_how_many_devices_it_takes(devices, expected):
    assert has_fused_sums(SimpleNamespace(shape=lambda: {"model": devices}), True) is expected
