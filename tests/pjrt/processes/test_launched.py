"""A process that torchrun or torch_xla.launch started: its rank, its GPU and its errors, without a GPU."""

import json
import os
import subprocess
import sys

import pytest
from torch_xla.experimental import plugins

from pyxla.autoload import Plugin
from pyxla.errors import PyxlaError
from pyxla.hlo import dump
from pyxla.pjrt import client_options, cuda_plugin, proxy
from pyxla.pjrt.cuda_plugin import Gpu
from pyxla.pjrt.local_processes import Process, this_process

VARIABLES = (
    *("PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT", "TORCHELASTIC_RUN_ID"),
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", "PYXLA_VISIBLE_DEVICES"),
)
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "3", "WORLD_SIZE": "4"}
LAUNCHER = {"PJRT_LOCAL_PROCESS_RANK": "1", "PJRT_LOCAL_PROCESS_COUNT": "2"}


@pytest.fixture
def environment(monkeypatch):
    """Sets these variables and no other of a launcher's, on a host with so many GPUs; returns torch_xla's plugin."""

    def set_to(given: dict[str, str], gpus: int = 2) -> Plugin:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        found = (Gpu("a GPU", (9, 0), 1 << 36),) * gpus
        for module, name in ((client_options, "gpus"), (cuda_plugin, "gpus")):
            monkeypatch.setattr(module, name, lambda: found)
        plugin = Plugin.__new__(Plugin)
        plugins.DevicePlugin.__init__(plugin)
        return plugin

    return set_to


@pytest.mark.parametrize(
    ("given", "process"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, None),
        ({"PJRT_LOCAL_PROCESS_COUNT": "1"}, None),
        (LAUNCHER, Process(1, 2, 1, 2)),
        (TORCHRUN, Process(3, 4, 1, 2)),
        (TORCHRUN | LAUNCHER, Process(3, 4, 1, 2)),
    ],
    ids=["alone", "another-launcher", "one", "launch", "torchrun", "torchrun-then-process-group"],
)
def test_process_of_a_launcher(environment, given, process):
    plugin = environment(given)
    assert this_process() == process
    assert plugin.requires_xla_coordinator() == (process is not None)


@pytest.mark.parametrize(
    ("given", "gpus", "options"),
    [
        (LAUNCHER, 2, {"node_id": 1, "num_nodes": 2, "visible_devices": [1]}),
        (TORCHRUN, 2, {"node_id": 3, "num_nodes": 4, "visible_devices": [1]}),
        (LAUNCHER | {"PYXLA_VISIBLE_DEVICES": "2,5"}, 8, {"node_id": 1, "num_nodes": 2, "visible_devices": [5]}),
        (LAUNCHER | {"PYXLA_VISIBLE_DEVICES": "0"}, 1, {"node_id": 1, "num_nodes": 2, "visible_devices": [0]}),
        ({}, 2, {}),
    ],
    ids=["launch", "torchrun", "listed", "each-its-own", "alone"],
)
def test_each_process_takes_its_gpu(environment, given, gpus, options):
    plugin = environment(given, gpus)
    got = plugin.client_create_options()
    assert got == {"platform_name": "cuda", "preallocate": False} | options


@pytest.mark.parametrize(("given", "count"), [({}, 4), ({"PYXLA_VISIBLE_DEVICES": "0,3"}, 2)])
def test_a_process_for_each_gpu_is_launched(environment, given, count):
    assert environment(given, 4).physical_chip_count() == count


@pytest.mark.parametrize("launcher", [LAUNCHER, TORCHRUN], ids=["launch", "torchrun"])
def test_each_process_chooses_its_kernels_alone(environment, monkeypatch, launcher):
    """The flag is set when the client starts: torch_xla.launch names the process after torch_xla is imported."""
    given = []
    monkeypatch.setattr(proxy, "set_process_options", given.append)
    plugin = environment({})
    plugin.client_create_options()
    environment(launcher)
    assert plugin.client_create_options()["num_nodes"] > 1
    assert given == [b"", dump.overrides(xla_gpu_shard_autotuning=False)]


def test_fewer_gpus_than_processes(environment):
    plugin = environment(LAUNCHER, 1)
    with pytest.raises(PyxlaError) as caught:
        plugin.configure_multiprocess(1, 2)
    assert caught.value.message == "CUDA: device: expected a GPU for each of 2 processes, got 1"


def test_rank_that_is_no_number(environment):
    environment(TORCHRUN | {"RANK": "first"})
    with pytest.raises(PyxlaError, match="CUDA: RANK: expected a number, got 'first'"):
        this_process()


SCRIPT = """
import json, sys
from pathlib import Path
from pyxla.pjrt.local_processes import this_process

process = this_process()
(Path(sys.argv[1]) / f"{process.rank}.json").write_text(json.dumps(process))
"""


def test_torchrun_starts_two(tmp_path):
    """What torchrun itself puts into the environment."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(script), str(tmp_path)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [[0, 2, 0, 2], [1, 2, 1, 2]]


ENDS = """
import atexit, sys, time
from pyxla.pjrt.local_processes import Process, end_last

rank, how = int(sys.argv[1]), sys.argv[2]
# Registered first, so it runs last.
atexit.register(lambda: print(rank, flush=True))
end_last(Process(rank, 2, rank, 2))
print("started", flush=True)
sys.stdin.readline()
if rank == 0 and how == "fails":
    raise SystemError("rank 0 fails")
time.sleep(0.5 * rank)
"""


@pytest.mark.parametrize(("how", "order"), [("ends", ["1", "0"]), ("fails", ["0", "1"])])
def test_the_process_with_the_coordinator_ends_last(how, order):
    """Also if it is done first; not if it fails, as the other may then wait for it in vain."""
    read, write = os.pipe()
    command = [sys.executable, "-c", ENDS]
    both = [
        subprocess.Popen([*command, str(rank), how], stdin=subprocess.PIPE, stdout=write, stderr=subprocess.DEVNULL)
        for rank in (0, 1)
    ]
    os.close(write)
    with os.fdopen(read) as output:
        assert [output.readline() for _ in both] == ["started\n"] * 2
        for process in both:
            process.stdin.close()
        assert output.read().split() == order
    assert [process.wait() for process in both] == [how == "fails", 0]
