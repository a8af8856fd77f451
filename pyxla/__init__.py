"""Write a GPU kernel and use it from PyTorch through XLA.

`import pyxla`, and with it `import torch_xla`, defines every op found as `torch.ops.xla_gpu.<op>`; the handlers are
registered on first use.
"""

import os

# XLA's CPU client would run larger computations in the background, where a handler's error kills the process when the
# result is read (pyxla/lowering.py, await_uploads). torch_xla reads this when it starts its client.
os.environ.setdefault("PJRT_CPU_ASYNC_CLIENT", "0")

from pyxla.check import Check
from pyxla.errors import ArgumentError, DefinitionError, LibraryError, PyxlaError
from pyxla.numerics import accumulation_dtype
from pyxla.op import CustomOp, custom_op
from pyxla.ops import load_all as _load_all
from pyxla.sync import drain_errors, sync

__all__ = [
    "ArgumentError",
    "Check",
    "CustomOp",
    "DefinitionError",
    "LibraryError",
    "PyxlaError",
    "accumulation_dtype",
    "custom_op",
    "drain_errors",
    "sync",
]

_load_all()
