"""In a child of os.fork, XLA's client lacks its threads: what would never end is an error that says so."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

PARENT = """
import json, multiprocessing, sys
import torch, torch_xla
import pyxla

x, weight = torch.ones(4, 8), torch.ones(8)
rms_norm = torch.ops.xla_gpu.rms_norm


def on_xla():
    device = torch_xla.device()
    result = rms_norm(x.to(device), weight.to(device), 1e-6)
    pyxla.sync()
    return result.cpu().sum().item()


before = sys.argv[1]
device = torch_xla.device() if before != "import" else None
compiled = torch.compile(rms_norm, backend="openxla")
if before == "use":
    on_xla()
    on_device = x.to(device), weight.to(device)
    compiled(*on_device, 1e-6)
    op = pyxla.find_op("rms_norm")
    op(*on_device, 1e-6)
calls = {
    "op": on_xla,
    "object": lambda: op(*on_device, 1e-6),
    "dispatcher": lambda: rms_norm(*on_device, 1e-6),
    "compiled": lambda: compiled(*on_device, 1e-6),
    "sync": pyxla.sync,
    "cpu": lambda: rms_norm(x, weight, 1e-6).sum().item(),
    "loader": lambda: next(iter(torch.utils.data.DataLoader([x, x], batch_size=2, num_workers=1))).sum().item(),
}


def child(name, queue):
    try:
        queue.put(calls[name]())
    except pyxla.PyxlaError as error:
        queue.put(str(error))


def result_in_child(name):
    if name == "loader":  # it forks its own child
        return calls[name]()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(name, queue), daemon=True)
    process.start()
    result = queue.get(timeout=60)
    process.join(60)
    return result


print(json.dumps({name: result_in_child(name) for name in sys.argv[2:]}))
"""
HINT = 'hint: start children with multiprocessing.get_context("spawn"), or use only CPU tensors in them'


def results(before: str, *calls: str) -> dict[str, str | float]:
    """What a child of its own gets for each call.

    Args:
        before: what the parent did before: it imported torch_xla, started the client, or used the op too.
        calls: what the children call.
    """
    command = [sys.executable, "-P", "-c", PARENT, before, *calls]
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(where: str) -> str:
    return f"{where}: process: expected the one that started XLA, got a child that it forked\n\n{HINT}"


def test_child_of_a_process_that_has_computed():
    refused = {name: refusal("rms_norm") for name in ("op", "object", "dispatcher")}
    refused |= {"compiled": refusal("compiled graph"), "sync": refusal("sync")}
    computed = {"cpu": pytest.approx(32, rel=1e-4), "loader": 64}
    assert results("use", *refused, *computed) == refused | computed


def test_child_of_a_process_that_has_started_the_client():
    assert results("device", "op") == {"op": refusal("rms_norm")}


def test_child_of_a_process_that_has_only_imported():
    assert results("import", "op") == {"op": pytest.approx(32, rel=1e-4)}
