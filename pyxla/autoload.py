"""What `import torch_xla` loads by itself, through the entry point of group `torch_xla.plugins`.

Importing it imports pyxla, which defines every op; the handlers of preloaded libraries are registered at once. So
`LD_PRELOAD=lib<op>.so python script.py` works for a script that knows only torch and torch_xla.
"""

from __future__ import annotations

import warnings

from torch_xla.experimental.plugins import DevicePlugin

from pyxla.libraries import op_names
from pyxla.registry import register_preloaded


class Plugin(DevicePlugin):
    """The plugin object that torch_xla asks for; it brings no device of its own."""

    def __init__(self) -> None:
        super().__init__()
        known = set(op_names())
        for library in register_preloaded():
            op = library.table.op
            if op not in known:
                warnings.warn(f"{op}: definition: expected {op}.py, got none for {library.path}", stacklevel=2)

    def library_path(self) -> str:
        """There is no PJRT plugin behind this entry point."""
        raise NotImplementedError(
            "pyxla: device: expected PJRT_DEVICE=CPU, got pyxla\n\nhint: unset PJRT_DEVICE or set it to CPU"
        )
