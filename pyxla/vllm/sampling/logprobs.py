"""Log probabilities: of chosen tokens, and the highest ones of each row."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class Logprobs(NamedTuple):
    """Log probabilities of each row; the fields are those of vLLM's LogprobsTensors.

    Attributes:
        token_ids: [rows, 1 + num], int32; the chosen token, then the likeliest ones in order.
        values: [rows, 1 + num], float32.
        ranks: [rows], int32; how many tokens are as likely as the chosen one or more, so 1 is the best.
    """

    token_ids: torch.Tensor
    values: torch.Tensor
    ranks: torch.Tensor


def score(logits: torch.Tensor, tokens: torch.Tensor, num: int, normalize: bool = True) -> Logprobs:
    """Returns the log probabilities of a token of each row, and the highest ones.

    Args:
        logits: [rows, vocabulary].
        tokens: [rows], int32; the chosen tokens.
        num: how many of the likeliest tokens.
        normalize: False: the logits themselves.
    """
    logits = logits.float()
    values, token_ids = largest(logits, num)
    chosen = logits.gather(1, tokens[:, None].long())
    ranks = (logits >= chosen).sum(1, dtype=torch.int32)
    values = torch.cat([chosen, values], 1)
    if normalize:
        values = values - logits.logsumexp(1, keepdim=True)
    return Logprobs(torch.cat([tokens[:, None], token_ids], 1), values, ranks)


def largest(logits: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest numbers of each row in order, and their columns.

    Args:
        logits: [rows, vocabulary], float32.
        num: how many.

    Returns:
        [rows, num], float32, and [rows, num], int32. Which of several equal columns is left out is not said.
    """
    rows, vocab_size = logits.shape
    width = 1 << round(math.log2(max(vocab_size / max(num, 1), 1)) / 2)
    # Only the blocks with the largest maxima have any of them, and sorting is the work that takes long.
    blocked = in_blocks(logits, width, -torch.inf)
    if not 0 < num < blocked.shape[1]:
        values, columns = logits.topk(num)
        return values, columns.to(torch.int32)
    blocks = blocked.amax(2).topk(num).indices
    values, places = blocked.gather(1, blocks[:, :, None].expand(rows, num, width)).flatten(1).topk(num)
    columns = blocks.gather(1, places // width) * width + places % width
    return values, columns.to(torch.int32)


def in_blocks(rows: torch.Tensor, width: int, value: float) -> torch.Tensor:
    """[rows, blocks, width]: the rows [rows, vocabulary], and `value` up to a full block."""
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % width), value=value).view(len(rows), -1, width)
