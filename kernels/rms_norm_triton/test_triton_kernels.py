from pyxla_kernels.rms_norm_triton.rms_norm_triton import triton

from pyxla import testing


def test_numbers_in_tritons_interpreter():
    testing.check_triton(triton)
