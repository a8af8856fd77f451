"""rms_norm_triton: rms_norm with its device code in Triton, compiled ahead of time."""

from pyxla import implementation

triton = implementation(__file__)
