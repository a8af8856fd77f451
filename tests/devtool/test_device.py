"""devtool.device: the device that `--device` selects."""

import os
import subprocess
import sys

import pytest

from devtool import device
from devtool.device import pick_device
from devtool.errors import DevtoolError
from tests import stand_in_driver
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("devices", "wanted", "picked"),
    [(0, "auto", "cpu"), (0, "cpu", "cpu"), (2, "cpu", "cpu"), (2, "auto", "cuda"), (2, "cuda", "cuda")],
)
def test_device(monkeypatch, devices, wanted, picked):
    monkeypatch.setattr(device, "has_cuda_device", lambda: devices > 0)
    assert pick_device("test", wanted) == picked


def test_cuda_device_without_a_gpu(monkeypatch):
    monkeypatch.setattr(device, "has_cuda_device", lambda: False)
    with pytest.raises(DevtoolError) as caught:
        pick_device("test", "cuda")
    assert caught.value.message == (
        "test: --device: expected a CUDA device, got none\n\nhint: devtool test --device cpu"
    )


@pytest.mark.parametrize("opens", ["libnvidia-nvvm.so.4", "libnone.so"])
def test_driver_is_asked_without_torch(tmp_path, opens):
    """A driver that starts, and one that does not."""
    stand_in_driver.driver(tmp_path, opens=opens)
    script = """import sys
from devtool.device import has_cuda_device
print(has_cuda_device(), *{"torch", "pyxla"} & set(sys.modules))"""
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=env, check=True, capture_output=True, text=True
    )
    assert result.stdout == f"{opens == 'libnvidia-nvvm.so.4'}\n"
