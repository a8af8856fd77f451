"""What `devtool tune silu_and_mul` chooses; every gated activation has these parameters."""

from pyxla_kernels._gated.tuning import CLASSES, PARAMETERS, allowed, key, start

__all__ = ["CLASSES", "PARAMETERS", "allowed", "key", "start"]
