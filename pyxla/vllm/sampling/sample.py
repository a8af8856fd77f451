"""The next token of each row, on the device: one graph per variant."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

import torch

from pyxla.vllm.sampling.filters import ZERO_BITS, filtered
from pyxla.vllm.sampling.logprobs import Logprobs, in_blocks, score
from pyxla.vllm.sampling.rows import Rows, as_rows
from pyxla.vllm.sampling.tables import Tables, adjusted, allowed, count
from pyxla.vllm.sampling.threefry import exponential

LOGPROBS_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
# vLLM's: below it a temperature is 0.
MIN_TEMPERATURE = 1e-5
# The weight of a token that is allowed, of which the largest is 1, is at least this: with 0 it would look like one that
# is not allowed, and the devices differ in how they treat still smaller numbers.
_MIN_WEIGHT = 1e-30


class Level(enum.IntEnum):
    """What the rows of a step need; each level does what those before it do."""

    GREEDY = 0  # the likeliest token
    RANDOM = 1  # temperature, min-p, seed
    FILTERED = 2  # top-k, top-p
    ADJUSTED = 3  # grammar, biases, tokens that are not allowed, penalties


class Variant(NamedTuple):
    """A graph of `sample`.

    Attributes:
        level: what it does.
        logprobs: whether it returns log probabilities.
    """

    level: Level
    logprobs: bool


VARIANTS = [Variant(level, logprobs) for logprobs in (False, True) for level in Level]


class Sampled(NamedTuple):
    """What `sample` returns.

    Attributes:
        tokens: [rows], int32.
        logprobs: None without log probabilities.
    """

    tokens: torch.Tensor
    logprobs: Logprobs | None


def sample(
    logits: torch.Tensor,
    packed: torch.Tensor,
    tables: Tables,
    mask: torch.Tensor,
    variant: Variant,
    num_logprobs: int = 20,
    logprobs_mode: str = "raw_logprobs",
) -> Sampled:
    """Draws the next token of each row, in vLLM's order of operations.

    Grammar, tokens that are not allowed, bias, penalties; then for the rows with a temperature: temperature, min-p,
    top-k, top-p, draw. Of equal likeliest tokens the first is taken.

    Args:
        logits: [rows, vocabulary], of a float dtype.
        packed: [rows, COLUMNS], int32; from `Sampler.prepare`.
        tables: the sampler's; on level ADJUSTED the counts are updated in place.
        mask: [rows, words], int32; from `Sampler.prepare`.
        variant: from `Sampler.prepare`.
        num_logprobs: how many of the likeliest tokens the log probabilities have.
        logprobs_mode: one of LOGPROBS_MODES: before (raw) or after what this function does to the logits.
    """
    level, rows = variant.level, as_rows(packed)
    zero_bits = ZERO_BITS.get(logits.dtype, 0)
    raw = logits.float()
    changed = raw
    if level == Level.ADJUSTED:
        # A grammar comes before what counts as raw, as in vLLM.
        raw = allowed(raw, mask)
        changed, zero_bits = adjusted(raw, rows, tables), 0
    tokens = changed.argmax(1).to(torch.int32)
    if level >= Level.RANDOM:
        weights = _weights(changed, rows, level, zero_bits)
        random = rows.temperature >= MIN_TEMPERATURE
        tokens = torch.where(random, _draw(weights, rows), tokens)
        if variant.logprobs and logprobs_mode.startswith("processed"):
            kept = (weights > 0) | ~random[:, None]
            changed = torch.where(kept, changed / _divisor(rows)[:, None], -torch.inf)
    if level == Level.ADJUSTED:
        count(tokens, rows, tables)
    if not variant.logprobs:
        return Sampled(tokens, None)
    scored = raw if logprobs_mode.startswith("raw") else changed
    return Sampled(tokens, score(scored, tokens, num_logprobs, logprobs_mode.endswith("logprobs")))


def _divisor(rows: Rows) -> torch.Tensor:
    return torch.where(rows.temperature < MIN_TEMPERATURE, 1.0, rows.temperature)


def _weights(logits: torch.Tensor, rows: Rows, level: Level, zero_bits: int) -> torch.Tensor:
    """[rows, vocabulary], float32: the probability of each token, as a multiple of the highest one."""
    highest = logits.amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights = ((logits - highest) / _divisor(rows)[:, None]).exp().clamp(min=_MIN_WEIGHT)
    out = logits.isneginf() | (weights < rows.min_p[:, None])
    weights = torch.where(out, 0.0, weights)
    return weights if level < Level.FILTERED else filtered(logits, weights, rows.top_k, rows.top_p, zero_bits)


def _draw(weights: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Draws a block by its sum, then a token in it, each by a race of exponentials: Gumbel's trick, twice.

    The distribution is that of one race of all tokens, which would take as many random numbers as the vocabulary has
    tokens.

    Returns:
        [rows], int32.
    """
    # About as many blocks as tokens of a block; a power of two, so that blocks are aligned.
    width = 1 << math.ceil(math.log2(weights.shape[1]) / 2)
    blocks = in_blocks(weights, width, 0.0)
    block = _race(blocks.sum(2), rows, 0)
    inside = blocks.gather(1, block[:, None, None].expand(-1, 1, width))[:, 0]
    return (block * width + _race(inside, rows, blocks.shape[1])).to(torch.int32)


def _race(weights: torch.Tensor, rows: Rows, first: int) -> torch.Tensor:
    """[rows], int64: a column of each row of [rows, columns], with its weight's share as probability."""
    columns = torch.arange(first, first + weights.shape[1], dtype=torch.int32, device=weights.device)
    key = rows.seed_low[:, None], rows.seed_high[:, None]
    times = exponential(key, (columns[None], rows.position[:, None]))
    return (weights.log() - times.log()).argmax(1)
