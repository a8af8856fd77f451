"""An error of a handler is an exception also if tensors were copied to XLA's CPU just before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_xla
import torch_xla.runtime

from pyxla import drain_errors
from pyxla.lowering.uploads import await_uploads
from tests.conftest import ROOT
from tests.probe import probe_ops as ops

pytestmark = pytest.mark.usefixtures("probe_library")
DEVICE = torch_xla.device()
# Counts the errors: without the wait torch_xla 2.8 ends the process, and 2.9 raises some of them or none.
ERRORS_AFTER_COPIES = """
import sys, torch, torch_xla
import pyxla
from tests.probe import probe_ops as ops

calls = {
    "an operand": ops.probe_fail,
    "a computed operand": lambda x: ops.probe_fail(x * 2),
    "a small computed operand": lambda x: ops.probe_fail(x[:4] * 2),
    "a compiled graph": torch.compile(lambda x: ops.probe_fail(x * 2), backend="openxla"),
}
call = calls[sys.argv[1]]
device = torch_xla.device()
good, bad = torch.full((1 << 22,), 1.0), torch.full((1 << 22,), -1.0)
call(good.to(device)).cpu()
errors = 0
for _ in range(20):
    result = None
    try:
        result = call(bad.to(device))
        pyxla.sync()
    except RuntimeError as error:
        assert "probe_fail: x: expected a first element that is not negative" in str(error), error
        pyxla.drain_errors()
        errors += 1
assert (good.to(device) + 1).cpu()[0].item() == 2.0
print("errors:", errors)
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_await_uploads_takes_every_dtype(dtype):
    tensor = torch.zeros(1 << 20).to(dtype).to(DEVICE)
    pending = tensor.to(torch.float32) + 1
    await_uploads([tensor, pending])
    assert pending.cpu().min().item() == 1.0


@pytest.mark.skipif(torch_xla.runtime.device_type() != "CPU", reason="waits for no upload: not XLA's CPU")
def test_buffers_that_were_awaited_are_freed():
    """Unconsumed exports would keep each operand's buffer: a decoder in direct mode would leak a cache per step."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def calls(count: int) -> None:
        for _ in range(count):
            ops.probe_fail(torch.ones(4 << 20).to(DEVICE)).cpu()

    # The allocator keeps more memory over the first 100 calls or so, up to 250 MiB, and no more in the next 1,100.
    calls(40)
    before = resident_bytes()
    calls(40)
    # Half of what 40 operands of 16 MiB would take.
    assert resident_bytes() - before < 320 << 20


def test_error_from_the_handler_right_after_a_large_upload():
    """XLA copies large inputs in the background and would abort the process if a handler failed meanwhile."""
    for _ in range(20):
        bad = torch.full((1 << 20,), -1.0).to(DEVICE)
        with pytest.raises(RuntimeError, match="probe_fail: x: expected a first element that is not negative"):
            ops.probe_fail(bad).cpu()
        drain_errors()


@pytest.mark.skipif(torch_xla.runtime.device_type() != "CPU", reason="waits for no upload: not XLA's CPU")
@pytest.mark.parametrize("call", ["an operand", "a computed operand", "a small computed operand", "a compiled graph"])
def test_each_error_after_a_large_copy_is_raised(call, probe_library):
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "LD_PRELOAD": str(probe_library.path)}
    command = [sys.executable, "-P", "-c", ERRORS_AFTER_COPIES, call]
    done = subprocess.run(
        command, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("errors: 20\n")


def test_looks_once_after_a_copy_at_what_operands_are_computed_from(monkeypatch):
    """Each look takes as long as the graph is large, and a lazily traced step has many ops."""
    looks = []
    look = torch_xla._XLAC._get_tensors_xla_device_data_node
    monkeypatch.setattr(
        torch_xla._XLAC, "_get_tensors_xla_device_data_node", lambda tensors: looks.append(1) or look(tensors)
    )
    for step in range(3):
        x = torch.ones(1 << 16).to(DEVICE)
        for _ in range(5):
            x = ops.probe_fail(x + 1)
        assert len(looks) == step + 1
        x.cpu()
