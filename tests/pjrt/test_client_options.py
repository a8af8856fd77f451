"""The environment variables that set options of the vendor's plugin."""

import pytest

from pyxla.errors import PyxlaError
from pyxla.pjrt.client_options import check_allocator, client_options, process_flags


def test_options_of_the_client(monkeypatch):
    assert client_options() == {"platform_name": "cuda", "preallocate": False}
    values = {
        "PYXLA_ALLOCATOR": "bfc", "PYXLA_MEMORY_FRACTION": "0.5", "PYXLA_PREALLOCATE": "1",
        "PYXLA_VISIBLE_DEVICES": "0,2", "PYXLA_NODE_ID": "1", "PYXLA_NUM_NODES": "4",
    }  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert client_options() == {
        "platform_name": "cuda", "preallocate": True, "allocator": "bfc", "memory_fraction": 0.5,
        "visible_devices": [0, 2], "node_id": 1, "num_nodes": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYXLA_ALLOCATOR", "malloc"), ("PYXLA_MEMORY_FRACTION", "2"), ("PYXLA_MEMORY_FRACTION", "half"),
        ("PYXLA_PREALLOCATE", "yes"), ("PYXLA_VISIBLE_DEVICES", "all"), ("PYXLA_NODE_ID", "-1"),
        ("PYXLA_NUM_NODES", ""),
    ],
)  # fmt: skip
def test_option_that_the_plugin_cannot_take(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(PyxlaError, match=rf"CUDA: {name}: expected .*, got {value!r}"):
        client_options()


def test_flags_of_the_process(monkeypatch):
    assert process_flags() == {}
    monkeypatch.setenv("PYXLA_ALLOCATOR", "vmm")
    assert process_flags() == {"xla_gpu_command_buffer_update_mode": "SKIP_TEMP"}


def test_allocator_that_the_plugin_lacks(monkeypatch):
    check_allocator("jax-cuda13-pjrt 0.10.0", (0, 112))
    monkeypatch.setenv("PYXLA_ALLOCATOR", "vmm")
    check_allocator("jax-cuda13-pjrt 0.11.2", (0, 115))
    with pytest.raises(PyxlaError) as raised:
        check_allocator("jax-cuda13-pjrt 0.10.0", (0, 112))
    assert raised.value.message == (
        "CUDA: PYXLA_ALLOCATOR: expected a plugin with PJRT API 0.115 or newer for vmm, "
        "got jax-cuda13-pjrt 0.10.0 (PJRT API 0.112)"
    )
