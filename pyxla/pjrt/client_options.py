"""What pyxla's environment variables set: options of the vendor's plugin, and XLA's flags that follow from them."""

from __future__ import annotations

import os
import re

from pyxla.errors import PyxlaError, mismatch
from pyxla.pjrt.cuda_plugin import gpus
from pyxla.pjrt.local_processes import gpu_of, this_process

# Maps memory to addresses of XLA's choice. Older plugins have another flag for it: jax-cuda13-pjrt 0.10.0.
VMM, VMM_SINCE = "vmm", (0, 115)


def client_options() -> dict[str, object]:
    """Options of the plugin's client, from the environment.

    PYXLA_ALLOCATOR ("default", "bfc", "cuda_async", "platform", "vmm"), PYXLA_MEMORY_FRACTION (share of the GPU's
    memory, by default 0.75), PYXLA_PREALLOCATE (0 or 1, by default 0), PYXLA_VISIBLE_DEVICES ("0,2"), PYXLA_NODE_ID and
    PYXLA_NUM_NODES (this process among several). A process that torchrun or torch_xla.launch started gets one GPU, and
    its rank.

    Raises:
        PyxlaError: a value that the plugin cannot take, or fewer GPUs than processes.
    """
    options: dict[str, object] = {"platform_name": "cuda", "preallocate": _flag("PYXLA_PREALLOCATE", False)}
    if "PYXLA_ALLOCATOR" in os.environ:
        options["allocator"] = _one_of("PYXLA_ALLOCATOR", ("default", "bfc", "cuda_async", "platform", VMM))
    if "PYXLA_MEMORY_FRACTION" in os.environ:
        options["memory_fraction"] = _number("PYXLA_MEMORY_FRACTION")
    if "PYXLA_VISIBLE_DEVICES" in os.environ:
        text = os.environ["PYXLA_VISIBLE_DEVICES"]
        if not re.fullmatch(r"\d+(,\d+)*", text):
            raise PyxlaError(mismatch("CUDA", "PYXLA_VISIBLE_DEVICES", "numbers separated by commas", repr(text)))
        options["visible_devices"] = [int(number) for number in text.split(",")]
    if process := this_process():
        options |= {"node_id": process.rank, "num_nodes": process.count}
        options["visible_devices"] = [gpu_of(process, options.get("visible_devices"), len(gpus()))]
    for name, option in (("PYXLA_NODE_ID", "node_id"), ("PYXLA_NUM_NODES", "num_nodes")):
        if name in os.environ:
            if not os.environ[name].isdecimal():
                raise PyxlaError(mismatch("CUDA", name, "a number", repr(os.environ[name])))
            options[option] = int(os.environ[name])
    return options


def uses_vmm() -> bool:
    """Whether PYXLA_ALLOCATOR names the allocator with which a graph's temporary memory keeps its addresses.

    Raises:
        PyxlaError: as `client_options`.
    """
    return client_options().get("allocator") == VMM


def process_flags() -> dict[str, str | bool]:
    """XLA's flags for every compilation of this process, which torch_xla's own XLA may not know.

    Raises:
        PyxlaError: as `client_options`.
    """
    flags: dict[str, str | bool] = {}
    if uses_vmm():
        # Where the addresses change, XLA updates a captured graph before each launch, kernel by kernel: 7 ms of a
        # decode step on two GPUs.
        flags["xla_gpu_command_buffer_update_mode"] = "SKIP_TEMP"
    if this_process():
        # Otherwise each process times a part of a graph's kernels and waits for the others' results: torch_xla's
        # processes may compile different graphs, or one of them none.
        flags["xla_gpu_shard_autotuning"] = False
    return flags


def check_allocator(origin: str, api_version: tuple[int, int]) -> None:
    """Raises PyxlaError for an allocator that a plugin with this version of the PJRT C API does not have.

    Args:
        origin: where the plugin is from, for the message.
        api_version: its major and minor version.
    """
    if uses_vmm() and api_version < VMM_SINCE:
        (major, minor), (own_major, own_minor) = VMM_SINCE, api_version
        raise PyxlaError(
            mismatch(
                "CUDA",
                "PYXLA_ALLOCATOR",
                f"a plugin with PJRT API {major}.{minor} or newer for vmm",
                f"{origin} (PJRT API {own_major}.{own_minor})",
            ),
            "set it to default, or install jax-cuda13-pjrt==0.11.2",
        )


def _flag(name: str, default: bool) -> bool:
    return _one_of(name, ("0", "1")) == "1" if name in os.environ else default


def _one_of(name: str, choices: tuple[str, ...]) -> str:
    value = os.environ[name]
    if value not in choices:
        raise PyxlaError(mismatch("CUDA", name, f"one of {', '.join(choices)}", repr(value)), f"unset {name}")
    return value


def _number(name: str) -> float:
    try:
        value = float(os.environ[name])
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise PyxlaError(mismatch("CUDA", name, "a number above 0, at most 1", repr(os.environ[name])), f"unset {name}")
    return value
