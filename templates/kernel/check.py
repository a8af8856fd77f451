"""Calls the op on XLA's device and compares it with its reference."""

import torch
import torch_xla
from scaled.scaled import scaled

x = torch.randn(4, 1024)
got = scaled(x.to(torch_xla.device()), 2.0).cpu()
torch.testing.assert_close(got, scaled.reference(x.double(), 2.0).float())
print("scaled: right on", torch_xla.device())
