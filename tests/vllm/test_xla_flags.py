"""A user's flag takes precedence over the worker's; products are as precise as torch's."""

import pytest
import torch

from tests.vllm.engine import MARKS, engine

pytestmark = MARKS
OWN = "--xla_gpu_enable_triton_gemm=true"


def test_flags_of_the_user_come_last(monkeypatch):
    from pyxla.vllm import xla_flags

    monkeypatch.setenv("XLA_FLAGS", OWN)
    monkeypatch.setattr(xla_flags, "requested_device", lambda: "CPU")
    xla_flags.set_flags()
    assert xla_flags.os.environ["XLA_FLAGS"] == OWN
    monkeypatch.setattr(xla_flags, "requested_device", lambda: "CUDA")
    xla_flags.set_flags()
    assert xla_flags.os.environ["XLA_FLAGS"].split() == [*xla_flags.FLAGS, OWN]


@pytest.mark.parametrize(("own", "precision"), [("highest", "highest"), ("high", "high"), ("medium", "default")])
def test_products_of_float32_are_as_precise_as_torchs(own, precision):
    """XLA:CUDA's default is TF32, which changed a greedy token of a model in float32."""
    import torch_xla
    from torch_xla import _XLAC
    from torch_xla.backends import get_mat_mul_precision, set_mat_mul_precision

    from pyxla.vllm.xla_flags import set_precision

    before = torch.get_float32_matmul_precision(), get_mat_mul_precision()
    try:
        torch.set_float32_matmul_precision(own)
        set_mat_mul_precision("default")
        set_precision(torch.bfloat16)
        assert get_mat_mul_precision() == "default"
        set_precision(torch.float32)
        x = torch.ones(4, 4, device=torch_xla.device())
        text = _XLAC._get_xla_tensors_hlo([x @ x])
        assert (f"operand_precision={{{precision},{precision}}}" in text) == (precision != "default"), text
    finally:
        torch.set_float32_matmul_precision(before[0])
        set_mat_mul_precision(before[1])


def test_the_worker_sets_it(folder_of):
    from torch_xla.backends import get_mat_mul_precision, set_mat_mul_precision

    before = get_mat_mul_precision()
    try:
        set_mat_mul_precision("default")
        engine(folder_of("llama"), "direct")
        assert get_mat_mul_precision() == "highest"
    finally:
        set_mat_mul_precision(before)
