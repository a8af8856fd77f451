"""Inputs of rms_norm, shared by every op that computes it, so that all are tested and timed alike."""

from pyxla_kernels._rms_norm.cases import BENCHES, CASES, bad_inputs

__all__ = ["BAD_INPUTS", "BENCHES", "CASES"]

BAD_INPUTS = bad_inputs("rms_norm")
