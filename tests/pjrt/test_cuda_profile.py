"""A profile of the GPU: which kernels ran in it, and for how long."""

import pytest
import torch
import torch_xla
import torch_xla.runtime
from pyxla_kernels.simple_add.simple_add import simple_add

import pyxla
from pyxla.inspection.profile import kernels_in, profiling
from pyxla.library.find import find_library
from tests.devtool.trace.test_command import Traced

pytestmark = pytest.mark.skipif(
    torch_xla.runtime.device_type() != "CUDA", reason="needs a GPU: devtool test -- tests/pjrt --device cuda"
)
SIZE, STEPS = 1 << 26, 5


def test_profile_of_an_op():
    """Each call moves three arrays. No GPU of today moves them at more than 10 TB/s, or at less than 100 GB/s."""
    x = torch.ones(SIZE, device=torch_xla.device())
    torch_xla.sync(wait=True)
    seen = pyxla.inspect(lambda: simple_add(x, x, 2.0))
    with profiling(seen) as found:
        for _ in range(STEPS):
            result = simple_add(x, x, 2.0)  # kept: torch_xla computes no result that nobody has
            torch_xla.sync(wait=True)
    assert result.shape == x.shape
    assert found.calls["simple_add"] == STEPS and found.notes == []
    moved = 3 * x.nbytes * STEPS
    assert moved / 10e12 < found.seconds["simple_add"] < moved / 100e9
    assert 0 < found.busy <= 1


def test_names_of_the_kernels(monkeypatch):
    """XLA's profile has the names that the op's library has."""
    from jaxlib._profile_data import ProfileData

    x = torch.ones(1 << 20, device=torch_xla.device())
    torch_xla.sync(wait=True)
    session = torch_xla._XLAC.profiler.TslProfilerSessionWrapper()
    simple_add(x, x, 2.0).cpu()
    planes = ProfileData.from_serialized_xspace(session.stop()).planes
    ours = kernels_in([("simple_add", find_library("simple_add").path)])
    ran = [
        (event.name, event.duration_ns)
        for plane in planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        for event in line.events
        if event.name in ours
    ]
    assert ran and all(duration > 0 for _, duration in ran)


SCRIPT = """
    import torch
    import torch_xla

    x = torch.ones(1 << 24, device=torch_xla.device())
    for _ in range(6):
        x = torch.ops.xla_gpu.simple_add(x, x, 0.5)
        torch_xla.sync(wait=True)
    print(x[0].item())
"""


def test_trace_on_the_gpu(tmp_path):
    traced = Traced(tmp_path, SCRIPT, device="CUDA")
    assert (traced.done.returncode, traced.done.stdout) == (0, f"{1.5**6}\n"), traced.done.stderr
    entries = {entry["op"]: entry for entry in traced.report["device_time"]["ops"]}
    assert entries["simple_add"]["calls"] == 6 and entries["simple_add"]["seconds"] > 0
