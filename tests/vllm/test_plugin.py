"""What vLLM finds, and what others do not notice."""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from tests import stand_in_driver
from tests.vllm.engine import MARKS


def run(code: str, **variables: str) -> str:
    """What a Python without PJRT_DEVICE prints."""
    env = {name: value for name, value in os.environ.items() if name != "PJRT_DEVICE"} | variables
    return subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("CPU", "pyxla.vllm.platform.XlaPlatform"),
        ("CUDA", "pyxla.vllm.platform.XlaPlatform"),
        ("TPU", "None"),
        ("", "None"),
    ],
)
def test_the_plugin_is_silent_on_other_devices(device, expected):
    """And imports neither torch_xla nor pyxla there."""
    (plugin,) = entry_points(group="vllm.platform_plugins", name="pyxla")
    module, _, function = plugin.value.partition(":")
    code = (
        f"import sys; from {module} import {function}; print({function}(), {{'torch_xla', 'pyxla'}} & {{*sys.modules}})"
    )
    assert run(code, PJRT_DEVICE=device) == f"{expected} set()"


def test_pyxla_imports_nothing_of_vllm():
    code = "import sys, pyxla; print([name for name in sys.modules if name == 'vllm' or name.startswith('pyxla.vllm')])"
    assert run(code, PJRT_DEVICE="CPU") == "[]"


@pytest.mark.skipif(MARKS[0].args[0], reason=MARKS[0].kwargs["reason"])
def test_vllm_takes_the_platform():
    code = "from vllm.platforms import current_platform as p; print(p.device_type, type(p).__name__, p.device_count())"
    assert run(code, PJRT_DEVICE="CPU").splitlines()[-1] == "xla XlaPlatform 1"


@pytest.mark.skipif(MARKS[0].args[0], reason=MARKS[0].kwargs["reason"])
def test_vllm_chooses_its_defaults_by_what_the_driver_says(tmp_path):
    """Those of a GPU with 80 GB, without a start of XLA."""
    stand_in_driver.driver(tmp_path)
    code = (
        "import sys; from vllm.platforms import current_platform as p;"
        "print(p.get_device_total_memory() >> 30, p.get_device_name(), 'torch_xla' in sys.modules)"
    )
    out = run(code, PJRT_DEVICE="CUDA", LD_LIBRARY_PATH=str(tmp_path))
    assert out.splitlines()[-1] == "80 XLA:CUDA, stand-in False"
