"""Inputs of rms_norm_triton: those of every op that computes it, so that two of them are tested and timed alike."""

from pyxla_kernels._rms_norm.cases import BENCHES, CASES, bad_inputs

__all__ = ["BAD_INPUTS", "BENCHES", "CASES"]

BAD_INPUTS = bad_inputs("rms_norm_triton")
