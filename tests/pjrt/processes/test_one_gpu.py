"""Several processes on one GPU, each with a part of its memory, at the same time or one after the other."""

import ctypes
import json
import os
import subprocess
import sys

import pytest
import torch_xla.runtime

from pyxla.pjrt import driver

pytestmark = pytest.mark.skipif(
    torch_xla.runtime.device_type() != "CUDA", reason="needs a GPU: devtool test -- tests/pjrt --device cuda"
)
# Both hold their memory before either computes; both compute before either ends.
SCRIPT = """
import json, sys
import torch, torch_xla
from torch_xla.core import xla_model

number, device = int(sys.argv[1]), torch_xla.device()
x = torch.arange(1 << 20, dtype=torch.float32, device=device) % 8 + number
torch_xla.sync(wait=True)
print(json.dumps({"limit": xla_model.get_memory_info(device)["bytes_limit"]}), flush=True)
sys.stdin.readline()
total = x
for _ in range(200):
    total = torch.ops.xla_gpu.simple_add(total, x, 1.0)
    torch_xla.sync()
wrong = int((total.cpu() != (torch.arange(1 << 20) % 8 + number) * 201.0).sum())
print(json.dumps({"wrong": wrong}), flush=True)
sys.stdin.readline()
"""
TOO_MUCH = """
import sys, torch, torch_xla, pyxla
pieces = [torch.zeros(1 << 30, dtype=torch.uint8, device=torch_xla.device()) + n for n in range(int(sys.argv[1]))]
try:
    torch_xla.sync(wait=True)
    pyxla.sync()
except RuntimeError as error:
    print("RESOURCE_EXHAUSTED" in str(error) or "ut of memory" in str(error))
del pieces
pyxla.drain_errors()
"""


def started(script: str, argument: int, **variables: str) -> subprocess.Popen:
    env = {**os.environ, "PJRT_DEVICE": "CUDA", "PYXLA_MEMORY_FRACTION": "0.3", **variables}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", script, str(argument)], env=env, text=True, **pipes)


def memory() -> int:
    """Bytes of the GPU's memory."""
    size, cuda, device = ctypes.c_size_t(), driver.load(), ctypes.c_int()
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device) == 0
    return size.value


@pytest.mark.parametrize("preallocate", ["0", "1"])
def test_two_processes_share_a_gpu(preallocate):
    processes = [started(SCRIPT, number, PYXLA_PREALLOCATE=preallocate) for number in (1, 2)]
    try:
        for key in ("limit", "wrong"):
            found = [json.loads(process.stdout.readline())[key] for process in processes]
            assert found == [0, 0] if key == "wrong" else all(0.28 < n / memory() < 0.31 for n in found), found
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
        assert [process.wait(timeout=60) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_more_than_its_part_is_refused():
    """40 % of the GPU's memory, of which a process may take 30 %."""
    with started(TOO_MUCH, memory() * 2 // 5 >> 30) as process:
        out, _ = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, "True\n")


GRAPHS = """
import json, sys, torch, torch_xla
from pyxla.pjrt.proxy import graphs

x = torch.ones(int(sys.argv[1]), device=torch_xla.device())
total = torch.ops.xla_gpu.simple_add(x, x, 1.0).sum().item()
print(json.dumps([*graphs(), total]))
"""


def test_next_process_loads_the_graphs(tmp_path):
    """With another size it compiles its own."""

    def run(size: int) -> list:
        process = started(GRAPHS, size, PYXLA_GRAPH_CACHE=str(tmp_path))
        return json.loads(process.communicate(timeout=120)[0])

    compiled, loaded, total = run(1000)
    assert compiled > 0 and total == 2000
    assert run(1000) == [0, compiled + loaded, 2000]
    assert run(1001)[0] > 0
