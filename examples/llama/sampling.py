"""The next token of each row: the likeliest, or one drawn on the device from the likeliest ones."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pyxla import Check

# Tokens considered by a draw: sorting the vocabulary for every row would take longer than the last matrix product.
MAX_TOP_K = 64


class Draws(NamedTuple):
    """How the token of each row of a step is drawn. All fields are data.

    Attributes:
        temperature: [rows], float32; 0: the likeliest token.
        top_k: [rows], int32; the draw is among this many tokens.
        top_p: [rows], float32; and among the first tokens whose probabilities reach this sum.
        uniform: [rows], float32 in [0, 1); the random number.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    uniform: torch.Tensor


def draw(logits: torch.Tensor, greedy: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Draws a token for each row.

    Args:
        logits: [rows, vocabulary].
        greedy: [rows], int32; the likeliest token of each row.
        draws: how to draw.

    Returns:
        [rows], int32.
    """
    values, ids = logits.float().topk(min(MAX_TOP_K, logits.shape[-1]))
    ranks = torch.arange(values.shape[-1], device=logits.device)
    scaled = values / torch.where(draws.temperature > 0, draws.temperature, 1.0)[:, None]
    probabilities = scaled.masked_fill(ranks >= draws.top_k[:, None], -torch.inf).softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = probabilities.masked_fill(before >= draws.top_p[:, None], 0.0)
    sums = kept.cumsum(dim=-1)
    rank = (sums <= draws.uniform[:, None] * sums[:, -1:]).sum(dim=-1)
    # Rounding may move the number past the last sum, after which no token was kept.
    rank = torch.minimum(rank, (kept > 0).sum(dim=-1) - 1)
    drawn = ids.gather(1, rank[:, None])[:, 0].to(torch.int32)
    return torch.where(draws.temperature > 0, drawn, greedy)


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Raises for values that `draw` does not accept.

    Args:
        temperature: 0, or the divisor of the logits.
        top_k: at most MAX_TOP_K.
        top_p: in (0, 1].

    Raises:
        ArgumentError: one of them is out of range.
    """
    check = Check("llama")
    check.that(0 <= temperature < float("inf"), "temperature", "a number of 0 or more", temperature)
    check.that(1 <= top_k <= MAX_TOP_K, "top_k", f"a count in [1, {MAX_TOP_K}]", top_k)
    check.that(0 < top_p <= 1, "top_p", "a number in (0, 1]", top_p)
