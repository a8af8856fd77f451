"""Calls an op of the installed wheel on XLA's CPU device, and a function of cuDNN, which opens libraries beside it."""

import ctypes
import importlib.util
from pathlib import Path

import torch
import torch_xla

x = torch.randn(4, 1024)
weight = torch.randn(1024)
got = torch.ops.xla_gpu.rms_norm(x.to(torch_xla.device()), weight.to(torch_xla.device()), 1e-6).cpu()
torch.testing.assert_close(got, torch.nn.functional.rms_norm(x.double(), (1024,), weight.double(), 1e-6).float())
nvidia = Path(next(iter(importlib.util.find_spec("nvidia").submodule_search_locations)))
version = ctypes.CDLL(str(nvidia / "cudnn/lib/libcudnn.so.9")).cudnnGetVersion()
print(f"rms_norm is right on {torch_xla.device()}; cuDNN {version}")
