"""The module that `import torch_xla` loads by itself, through the entry point of group `torch_xla.plugins`.

It imports pyxla, which defines every op, and registers the handlers of preloaded libraries at once. So
`LD_PRELOAD=lib<op>.so python script.py` works for a script that knows only torch and torch_xla. With PJRT_DEVICE=CUDA
it is also the device's plugin. `devtool trace` starts its recording here.
"""

from __future__ import annotations

import os
from pathlib import Path

from torch_xla.experimental.plugins import DevicePlugin

from pyxla.errors import PyxlaError, mismatch, warn
from pyxla.hlo.dump import overrides
from pyxla.library.find import unsupported_libraries
from pyxla.library.register import register_preloaded
from pyxla.packages import kernel_packages
from pyxla.pjrt import c_api, cuda_plugin, proxy
from pyxla.pjrt.client_options import check_allocator, client_options, process_flags
from pyxla.pjrt.local_processes import end_last, this_process
from pyxla.pjrt.platform import requested_device
from pyxla.torch_xla_patches import release


class Plugin(DevicePlugin):
    """Tells torch_xla about the device CUDA, if PJRT_DEVICE names it.

    Raises:
        PyxlaError: PJRT_DEVICE=CUDA on a machine that lacks the plugin, a library, a driver or a GPU. Raised when
            torch_xla is imported: later, while torch_xla starts its client, it would end the process.
    """

    def __init__(self) -> None:
        super().__init__()
        if folder := os.environ.get("PYXLA_TRACE"):
            from pyxla.trace import recorder

            recorder.start(Path(folder), float(os.environ.get("PYXLA_TRACE_OP_SECONDS", "20")))
        cuda = requested_device() == "CUDA"
        if cuda:
            _prepare_cuda()
        known = {(package.namespace, folder) for package in kernel_packages() for folder in package.folders()}
        for library in register_preloaded("CUDA" if cuda else "Host"):
            op = library.table.op
            if (library.table.namespace, op) not in known:
                warn(f"{library.table.qualified_op}: definition: expected {op}.py, got none for {library.path}")
        # Its op raises this again when it is called; whoever loads a model first should not wait for that.
        for error in unsupported_libraries():
            warn(str(error))

    def library_path(self) -> str:
        """The PJRT plugin that torch_xla loads: pjrt_proxy, which loads the vendor's plugin."""
        return str(proxy.proxy_path())

    def client_create_options(self) -> dict[str, object]:
        """Options of the vendor's plugin, as pyxla.pjrt.client_options returns them; also sets XLA's flags for them."""
        proxy.set_process_options(overrides(**process_flags()))
        if process := this_process():
            end_last(process)
        return client_options()

    def physical_chip_count(self) -> int:
        """The number of GPUs that are visible or listed: torch_xla.launch starts a process for each."""
        return len(client_options().get("visible_devices", cuda_plugin.gpus()))

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Checks that this process, of several, has a GPU: an error while the client starts would end the process."""
        client_options()

    def configure_single_process(self) -> None:
        """Leaves the first GPU alone, for torch_xla.launch(debug_single_process=True)."""
        os.environ["PYXLA_VISIBLE_DEVICES"] = str(client_options().get("visible_devices", [0])[0])

    def requires_xla_coordinator(self) -> bool:
        """Whether processes compute together: they find each other, and NCCL's identifiers, at a coordinator's."""
        return this_process() is not None


def _prepare_cuda() -> None:
    """Checks all that could be wrong, loads the libraries that the plugin needs and tells pjrt_proxy where it is."""
    cuda_plugin.gpus()
    plugin = cuda_plugin.find_plugin()
    cuda_plugin.check_driver(plugin)
    proxy.proxy_path()
    client_options()
    cuda_plugin.load_libraries(plugin)
    try:
        version = c_api.api_version(plugin.path)
    except (OSError, AttributeError) as error:
        raise PyxlaError(
            mismatch("CUDA", "plugin", "a PJRT plugin that can be loaded", f"{error} ({plugin.origin})"),
            "install the locked wheels: PYXLA_SET=cuda13 bin/devtool",
        ) from error
    cuda_plugin.check_api_version(plugin, version)
    check_allocator(plugin.origin, version)
    os.environ["PYXLA_PJRT_PLUGIN"] = str(plugin.path)
    if release() != "2.8":
        # torch_xla 2.9 ends the process if a client calls itself "cuda". It makes and takes DLPack capsules only if the
        # client calls itself "cpu", and asks for the name nowhere else.
        os.environ.setdefault("PYXLA_PLATFORM_NAME", "cpu")
    if folder := os.environ.get("PYXLA_GRAPH_CACHE"):
        proxy.keep_graphs(Path(folder))
    # A switch of torch_xla's: a compiled graph that takes torch's CUDA tensors returns CUDA tensors without a copy.
    os.environ.setdefault("ZERO_COPY_ENABLED", "1")
