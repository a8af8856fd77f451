"""Compiles modules with XLA:CUDA on a machine without a GPU: the plugin gets a description of one.

    print(pyxla.compiled_for(pyxla.inspect(step, x), "H200"))

The plugin needs neither a driver nor CUDA's libraries for this. It looks up the handler of each custom call, and calls
none. Without the GPU it cannot measure which algorithm of a matrix product is the fastest, and takes the first.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pyxla import hlo
from pyxla.errors import ArgumentError, PyxlaError, mismatch
from pyxla.hlo import dump
from pyxla.hlo import text as hlo_text
from pyxla.hlo.module import Module
from pyxla.inspection.inspection import Inspection, read_files
from pyxla.library.find import find_library
from pyxla.library.register import check_architecture, ensure_registered
from pyxla.packages import NAMESPACE
from pyxla.pjrt import cuda_plugin
from pyxla.torch_ops.custom_op import find_op, find_target

__all__ = ["compiled_for"]

# Each GPU as its driver describes it, in the fields of XLA's GpuDeviceInfoProto; the first is its compute capability.
GPUS = {
    "A100": ((8, 0), {"core_count": 108, "fpus_per_core": 64, "l2_cache_size": 40 << 20, "clock_rate_ghz": 1.41,
                      "shared_memory_per_core": 167936, "shared_memory_per_block_optin": 166912,
                      "memory_bandwidth": 2039 * 10**9, "device_memory_size": 80 << 30}),
    "H100": ((9, 0), {"core_count": 132, "fpus_per_core": 128, "l2_cache_size": 50 << 20, "clock_rate_ghz": 1.98,
                      "shared_memory_per_core": 233472, "shared_memory_per_block_optin": 232448,
                      "memory_bandwidth": 3352 * 10**9, "device_memory_size": 79 << 30}),
    "H200": ((9, 0), {"core_count": 132, "fpus_per_core": 128, "l2_cache_size": 60 << 20, "clock_rate_ghz": 1.98,
                      "shared_memory_per_core": 233472, "shared_memory_per_block_optin": 232448,
                      "memory_bandwidth": 4800 * 10**9, "device_memory_size": 139 << 30}),
}  # fmt: skip
_OF_ALL = {
    "threads_per_block_limit": 1024, "threads_per_warp": 32, "threads_per_core_limit": 2048,
    "shared_memory_per_block": 49152, "registers_per_core_limit": 65536, "registers_per_block_limit": 65536,
    "block_dim_limit_x": 2**31 - 1, "block_dim_limit_y": 65535, "block_dim_limit_z": 65535,
}  # fmt: skip

# CompileOptionsProto.executable_build_options: one replica, one partition.
_ONE_DEVICE = b"\x1a\x04\x20\x01\x28\x01"


def compiled_for(seen: Inspection, gpu: str) -> Inspection:
    """Compiles modules that were inspected on the CPU with XLA:CUDA, for a GPU that need not be present.

    Custom calls, copies, aliasing and fusions are as they would be on that GPU. Three things are not: an op's workspace
    has its size on the CPU, algorithms of matrix products are not chosen by measurement, and what a command buffer
    would capture is unknown.

    Args:
        seen: from `pyxla.inspect` or `pyxla.inspecting`.
        gpu: "A100", "H100" or "H200".

    Returns:
        Inspection of the same modules, in the same order, with device "CUDA".

    Raises:
        ArgumentError: no such GPU, or modules of several devices.
        LibraryError: an op's library is missing, or has no code for this GPU.
        PyxlaError: the wheel jax-cuda13-pjrt is not installed, the plugin needs a GPU to compile for one, or XLA:CUDA
            does not compile a module.
    """
    if gpu not in GPUS:
        raise ArgumentError(mismatch("compiled_for", "gpu", " or ".join(GPUS), gpu))
    for module in seen.modules:
        if partitions := re.match(r"HloModule .*num_partitions=(\d+)", module.before):
            raise ArgumentError(
                mismatch("compiled_for", "seen", "modules of one device", f"one of {partitions[1]}"),
                "inspect the function without a mesh",
            )
    for target in {call.target for module in seen.modules for call in hlo_text.custom_calls(module.before)}:
        op = find_target(target)
        if op or target.startswith(f"{NAMESPACE}_"):
            op = op or find_op(target.removeprefix(f"{NAMESPACE}_"))
            # On each call: a registered library may have been checked for another GPU.
            check_architecture(find_library(op.library, op.namespace), GPUS[gpu][0])
            ensure_registered(op.library, target, "CUDA", capabilities=(), namespace=op.namespace)
    with tempfile.TemporaryDirectory(prefix="pyxla-hlo-") as name:
        for module in seen.modules:
            _compile(module, gpu, Path(name))
        modules = read_files(dump.in_order(Path(name).iterdir()))
    # XLA makes command buffers when it loads a module.
    return Inspection("CUDA", [replace(module, captured=None) for module in modules])


def _compile(module: Module, gpu: str, folder: Path) -> None:
    """Compiles a module; XLA writes its files to the folder."""
    from jaxlib import xla_client

    device = _device(gpu)
    flags = dump.overrides(xla_dump_to=str(folder), xla_dump_hlo_as_text=True, xla_gpu_autotune_level=0)
    # A CompileOptions made by jaxlib would have the flags of its XLA, which is older than the plugin.
    options = xla_client.CompileOptions.ParseFromString(_ONE_DEVICE + flags)
    try:
        device.client.compile(hlo.bytecode(module.before), xla_client.DeviceList((device,)), options)
    except Exception as error:  # XLA's own
        text = str(error).partition("\n")[0]
        raise PyxlaError(
            mismatch("compiled_for", module.name, "a module that XLA:CUDA compiles", text),
            "the module's `before` is the text that XLA was given",
        ) from error


@cache
def _plugin() -> Any:
    """The plugin, loaded by jaxlib: torch_xla cannot compile without a device."""
    # The plugin logs what it compiles to stderr.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from jaxlib import xla_client

    api = xla_client.load_pjrt_plugin_dynamically("cuda", str(cuda_plugin.find_plugin().path))
    xla_client.initialize_pjrt_plugin("cuda")
    return api


@cache
def _device(gpu: str) -> Any:
    """A device to compile for."""
    from jaxlib import xla_client

    config = {"target_config": _description(gpu), "topology": "1x1x1"}
    plugin = _plugin()
    try:
        return xla_client.make_c_api_device_topology(plugin, gpu, **config)._make_compile_only_devices()[0]
    except Exception as error:  # XLA's own, or jaxlib's
        got = str(error).partition("\n")[0]
        raise PyxlaError(
            mismatch("compiled_for", "plugin", "one that compiles for a GPU that is not here", got),
            "pip install --no-deps jax-cuda13-pjrt==0.11.2, and unset PYXLA_PJRT_PLUGIN",
        ) from error


def _description(gpu: str) -> str:
    """The text form of a GpuTargetConfigProto."""
    (major, minor), fields = GPUS[gpu]
    lines = [f"{name}: {value}" for name, value in (_OF_ALL | fields).items()]
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    info = "\n".join([*lines, capability])
    return f'gpu_device_info {{\n{info}\n}}\nplatform_name: "CUDA"\ndevice_description_str: "NVIDIA {gpu}"\n'
