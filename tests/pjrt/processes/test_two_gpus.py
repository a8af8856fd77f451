"""A process for each of two GPUs, started by torchrun and by torch_xla.launch: devices, ops, collectives, an error."""

import os
import subprocess
import sys

import pytest

from pyxla.errors import PyxlaError
from pyxla.pjrt import cuda_plugin


def gpus() -> int:
    try:
        return len(cuda_plugin.gpus()) if os.environ.get("PJRT_DEVICE") == "CUDA" else 0
    except PyxlaError:
        return 0


pytestmark = [
    pytest.mark.skipif(gpus() < 2, reason="needs two GPUs: devtool test -- tests/pjrt/processes --device cuda"),
    pytest.mark.slow,
]
SCRIPT = """
import faulthandler, sys
# A process that waits in vain says where.
faulthandler.dump_traceback_later(100, exit=True)
import torch, torch_xla
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr


def compute(index, fails):
    if dist.is_torchelastic_launched():
        dist.init_process_group("xla", init_method="xla://")
    device, rank = torch_xla.device(), xr.global_ordinal()
    assert (xr.world_size(), xr.addressable_device_count()) == (2, 1)
    x = torch.full((1000,), rank + 1.0, device=device)
    own = torch.ops.xla_gpu.simple_add(x, x, 1.0).cpu()
    assert own.eq(2 * (rank + 1)).all(), own
    if fails and rank == 1:
        sys.exit("rank 1 fails")
    total = xm.all_reduce(xm.REDUCE_SUM, x).cpu()
    assert total.eq(3).all(), total
    # Process r has 10 r + 0, 1, 2, 3.
    own = torch.arange(4.0, device=device) + 10 * rank
    gathered = xm.all_gather(own)
    scattered = xm.reduce_scatter(xm.REDUCE_SUM, own, 1.0, 0, 2)
    exchanged = xm.all_to_all(own, 0, 0, 2)
    torch_xla.sync()
    assert gathered.tolist() == [0, 1, 2, 3, 10, 11, 12, 13], gathered
    assert scattered.tolist() == ([10, 12], [14, 16])[rank], scattered
    assert exchanged.tolist() == ([0, 1, 10, 11], [2, 3, 12, 13])[rank], exchanged
    # One write, as the other process writes too.
    sys.stdout.write(f"right on {rank}\\n")
    sys.stdout.flush()


if __name__ == "__main__":
    torch_xla.launch(compute, args=(len(sys.argv) > 1,))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(tmp_path, *launcher: str, arguments: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, *launcher, str(script), *arguments]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0,1"), **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=150)


@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["launch", "torchrun"])
def test_collectives_of_both(tmp_path, launcher):
    done = run(tmp_path, *launcher, PYXLA_VISIBLE_DEVICES="0,1")
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("right")) == ["right on 0", "right on 1"]


def test_error_of_one_ends_the_other(tmp_path):
    """torchrun ends the process that waits for the sum; the time limit of `run` fails if it does not."""
    done = run(tmp_path, *TORCHRUN, arguments=("fails",), PYXLA_VISIBLE_DEVICES="0,1")
    assert done.returncode != 0 and "rank 1 fails" in done.stderr
