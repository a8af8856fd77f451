"""XLA's graphs in files, so that a server that starts again compiles none of them."""

from __future__ import annotations

import os
from pathlib import Path

from vllm import envs

from pyxla.pjrt import proxy
from pyxla.pjrt.platform import requested_device


def keep_graphs() -> None:
    """Keeps what XLA:CUDA compiles below VLLM_XLA_CACHE_PATH, and loads it from there; XLA:CPU cannot.

    VLLM_DISABLE_COMPILE_CACHE=1 keeps nothing there, and PYXLA_GRAPH_CACHE names another folder.
    """
    elsewhere = envs.VLLM_DISABLE_COMPILE_CACHE or "PYXLA_GRAPH_CACHE" in os.environ
    if requested_device() == "CUDA" and not elsewhere:
        proxy.keep_graphs(Path(envs.VLLM_XLA_CACHE_PATH))
