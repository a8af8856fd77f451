"""Which tensors export finds."""

import torch
import torch_xla

from pyxla.artifact.capture import xla_tensors


def test_a_found_tensor_outlives_its_owner():
    """export keeps what it found while the function runs, and the traceback of its error keeps it longer."""
    x = torch.full((3, 1, 5), 2.0).to(torch_xla.device()).requires_grad_()
    saved = x * 20
    number, product = id(saved), saved * saved
    # Now autograd is its only owner, from C++.
    del saved
    (found,) = (tensor for tensor in xla_tensors() if id(tensor) == number)
    del product
    assert found.tolist() == [[[40.0] * 5]] * 3
