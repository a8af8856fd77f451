"""XLA's graphs in files, so that a server that starts again compiles none of them."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from vllm import envs

from pyxla.pjrt.cuda_plugin import find_plugin
from pyxla.pjrt.platform import requested_device


def keep_graphs(engine: int) -> None:
    """Makes torch_xla keep what XLA:CUDA compiles below VLLM_XLA_CACHE_PATH; call it before XLA starts.

    XLA:CPU cannot read a graph back. VLLM_DISABLE_COMPILE_CACHE=1 keeps nothing, XLA_PERSISTENT_CACHE_PATH names
    another folder. torch_xla tells apart graphs, GPUs and XLA_FLAGS; the folder's name tells apart versions. A plugin
    that PYXLA_PJRT_PLUGIN names has no version, and no folder.

    Args:
        engine: number of the data-parallel engine, which has a folder of its own: torch_xla's files are not for two
            writers.
    """
    elsewhere = envs.VLLM_DISABLE_COMPILE_CACHE or "XLA_PERSISTENT_CACHE_PATH" in os.environ
    if elsewhere or requested_device() == "CPU" or find_plugin().is_named:
        return
    import torch_xla.runtime

    names = [find_plugin().origin.replace(" ", "-"), *(f"{name}-{version(name)}" for name in ("torch_xla", "pyxla"))]
    torch_xla.runtime.initialize_cache(str(Path(envs.VLLM_XLA_CACHE_PATH, "_".join(names), f"engine-{engine}")))
