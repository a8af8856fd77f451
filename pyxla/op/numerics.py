"""The precision in which references compute."""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a reference accumulates: float32 for a narrower dtype, else the dtype itself."""
    return torch.promote_types(dtype, torch.float32)
