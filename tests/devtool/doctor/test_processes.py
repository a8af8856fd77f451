"""The checks of devtool doctor that run in processes of their own."""

from pathlib import Path

import pytest

from devtool.doctor.checks import Doctor
from devtool.doctor.processes import Processes
from devtool.doctor.python import Problem
from tests import stand_in_driver


def test_a_hanging_probe_is_killed_with_all_that_it_started(monkeypatch, tmp_path):
    pid = tmp_path / "pid"
    code = (
        f"import subprocess; c = subprocess.Popen(['sleep', '60']); open({str(pid)!r}, 'w').write(str(c.pid)); c.wait()"
    )
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Problem, match=r"within 2 s"):
        Processes(timeout=2).ask("torch", hint="")
    status = Path("/proc", pid.read_text(), "stat")  # absent, or a zombie that is not collected yet
    assert not status.exists() or status.read_text().split()[2] == "Z"


def test_driver_and_where_it_is(monkeypatch, tmp_path):
    """The stand-in's CUDA is newer than that of every plugin."""
    stand_in_driver.driver(tmp_path, version=99020)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    doctor = Doctor()
    assert doctor._driver() == f"for CUDA 99.2, from LD_LIBRARY_PATH: {tmp_path}/libcuda.so.1"
    assert doctor._gpus == [("stand-in", (9, 0))]
