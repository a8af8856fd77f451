"""devtool.device: the device that `--device` selects."""

import pytest

from devtool import device
from devtool.device import pick_device
from devtool.errors import DevtoolError


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
