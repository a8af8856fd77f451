"""The next token of each request, inside the step's graph."""

from __future__ import annotations

import torch


def next_tokens(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row: logits [requests, vocabulary] -> [requests], int32."""
    return logits.argmax(dim=-1).to(torch.int32)
