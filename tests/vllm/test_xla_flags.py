"""A user's flag takes precedence over the worker's."""

from tests.vllm.engine import MARKS

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
