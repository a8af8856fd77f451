"""XLA's graphs in files, so that a server that starts again compiles none of them."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from vllm import envs

from pyxla.pjrt import cuda_plugin
from pyxla.pjrt.platform import requested_device


def keep_graphs() -> None:
    """Keeps what XLA:CUDA compiles below VLLM_XLA_CACHE_PATH, and loads it from there; XLA:CPU cannot.

    VLLM_DISABLE_COMPILE_CACHE=1 keeps nothing. The folder's name tells apart versions and GPUs. A plugin that
    PYXLA_PJRT_PLUGIN names has no version, and no folder.
    """
    if requested_device() == "CPU":
        return
    plugin = cuda_plugin.find_plugin()
    if envs.VLLM_DISABLE_COMPILE_CACHE or plugin.is_named:
        return
    gpu = cuda_plugin.gpus()[0].name
    names = [plugin.origin, *(f"{name}-{version(name)}" for name in ("torch_xla", "pyxla")), gpu]
    cuda_plugin.keep_graphs(Path(envs.VLLM_XLA_CACHE_PATH, "_".join(names).replace(" ", "-")))
