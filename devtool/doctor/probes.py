"""The code that `devtool doctor` runs in separate processes: it may raise, crash or hang, and doctor continues.

python -P -m devtool.doctor.probes torch
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from typing import Any


def torch() -> str:
    """The version of torch."""
    import torch

    return torch.__version__


def torch_xla() -> str:
    """The version of torch_xla."""
    import torch_xla  # noqa: F401

    return importlib.metadata.version("torch_xla")


def preload() -> list[str]:
    """The ops of the libraries in LD_PRELOAD."""
    from pyxla.library.find import preloaded_libraries

    return [library.table.op for library in preloaded_libraries()]


def plugin() -> dict[str, Any]:
    """The CUDA plugin."""
    from pyxla.pjrt.cuda_plugin import find_plugin

    found = find_plugin()
    return {"path": str(found.path), "origin": found.origin, "cuda": found.cuda}


def api_version() -> dict[str, Any]:
    """The CUDA plugin and the version of its PJRT API, which pjrt_proxy accepts."""
    from pyxla.errors import PyxlaError
    from pyxla.pjrt import c_api, cuda_plugin

    found = cuda_plugin.find_plugin()
    with contextlib.suppress(PyxlaError):  # `cuda_libraries` reports what is wrong with them
        cuda_plugin.load_libraries(found)
    version = c_api.api_version(found.path)
    cuda_plugin.check_api_version(found, version)
    return plugin() | {"api_version": version}


def proxy() -> str:
    """The path of pjrt_proxy."""
    from pyxla.pjrt.proxy import proxy_path

    return str(proxy_path())


def cuda_libraries() -> tuple[str, ...]:
    """The libraries that the plugin opens by name: paths in wheels, or names of system libraries."""
    from pyxla.pjrt.cuda_plugin import find_plugin, load_libraries

    return load_libraries(find_plugin())


def driver() -> dict[str, Any]:
    """The GPUs, the driver's CUDA version and origin, and what the plugin finds wrong: message and hint, or None."""
    from pyxla.errors import PyxlaError
    from pyxla.pjrt import cuda_plugin, driver

    gpus = [(gpu.name, gpu.capability) for gpu in cuda_plugin.gpus()]
    found = {"gpus": gpus, "version": cuda_plugin.driver_version(), "origin": driver.origin(), "problem": None}
    with contextlib.suppress(PyxlaError):  # without a plugin every driver will do
        plugin = cuda_plugin.find_plugin()
        try:
            cuda_plugin.check_driver(plugin)
        except PyxlaError as error:
            found["problem"] = (error.message, error.hint)
    return found


def ops(capabilities: str) -> list[dict[str, Any]]:
    """devtool's inventory; `misfit` is why the driver or a GPU of these capabilities cannot run an op, or None."""
    from devtool.building.inventory import inventory
    from pyxla.errors import LibraryError, PyxlaError
    from pyxla.library.find import find_library
    from pyxla.library.register import check_architecture, check_driver
    from pyxla.pjrt import cuda_plugin

    driver = None
    with contextlib.suppress(PyxlaError):
        cuda_plugin.gpus()
        driver = cuda_plugin.driver_version()
    entries = inventory()
    for entry in entries:
        entry["misfit"] = None
        if entry["state"] not in ("not built", "stale", "corrupt", "unsupported"):
            try:
                if driver:
                    check_driver(find_library(entry["op"]), driver)
                for capability in json.loads(capabilities):
                    check_architecture(find_library(entry["op"]), tuple(capability))
            except LibraryError as error:
                entry["misfit"] = (error.message, error.hint)
    return entries


def call() -> dict[str, Any]:
    """Calls simple_add on the device that PJRT_DEVICE names, with numbers whose result is exact."""
    import torch
    import torch_xla

    from pyxla import hlo

    a, b = torch.arange(1000.0), torch.arange(1000.0).flip(0)
    result = torch.ops.xla_gpu.simple_add(a.to(torch_xla.device()), b.to(torch_xla.device()), 2.0)
    module = hlo.lowered([result])
    wrong = int((result.cpu() != a + 2 * b).sum())
    custom_call = 'custom_call_target="xla_gpu_simple_add"' in module
    return {"custom_call": custom_call, "wrong": wrong, "torch_xla": importlib.metadata.version("torch_xla")}


def main(name: str, *arguments: str) -> None:
    """Prints {"found": ...} or {"problem": ..., "hint": ...} as JSON on stdout; what libraries print goes to stderr."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        result = {"found": globals()[name](*arguments)}
    except Exception as error:
        text = getattr(error, "message", None) or f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        result = {"problem": text, "hint": getattr(error, "hint", None)}
    with answer:
        json.dump(result, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
