"""What `import torch_xla` loads by itself, through the entry point of group `torch_xla.plugins`.

It makes `LD_PRELOAD=lib<op>.so python script.py` work for a script that knows only torch and torch_xla: the handlers
of preloaded libraries are registered and their ops defined. Without a preloaded library it does next to nothing.
"""

from __future__ import annotations

import os

from torch_xla.experimental.plugins import DevicePlugin


class Plugin(DevicePlugin):
    """The plugin object that torch_xla asks for; it brings no device of its own."""

    def __init__(self) -> None:
        super().__init__()
        if os.environ.get("LD_PRELOAD"):
            from pyxla.ops import load_preloaded

            load_preloaded()

    def library_path(self) -> str:
        """There is no PJRT plugin behind this entry point."""
        raise NotImplementedError(
            "pyxla: device: expected PJRT_DEVICE=CPU, got pyxla\n\nhint: unset PJRT_DEVICE or set it to CPU"
        )
