"""The sizes of steps: XLA compiles a graph for each, so a step is padded to the next one."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

SMALLEST = 8
# From here on sizes are also halfway between two powers of two: padding costs time where a step computes, not where it
# reads weights.
FINER = 512


class Bucket(NamedTuple):
    """The shape of a step.

    Attributes:
        tokens: rows of the model.
        requests: requests, each with one token or more, so at most `tokens`.
    """

    tokens: int
    requests: int


class Buckets:
    """The buckets of an engine, the smallest first.

    Each number of tokens has one number of requests: at most one for each token, and next to many tokens the logits of
    requests that are not there cost little.

    Args:
        max_tokens: tokens of the largest step.
        max_requests: requests of the largest step.

    Attributes:
        all: the buckets.
    """

    def __init__(self, max_tokens: int, max_requests: int):
        sizes, size = [], SMALLEST
        while size < max_tokens:
            sizes.append(size)
            if size >= FINER and size * 3 // 2 < max_tokens:
                sizes.append(size * 3 // 2)
            size *= 2
        self._tokens = [*sizes, max_tokens]
        self.all = [Bucket(tokens, min(tokens, max_requests)) for tokens in self._tokens]

    def fitting(self, tokens: int) -> Bucket:
        """The smallest bucket for a number of tokens."""
        return self.all[bisect_left(self._tokens, tokens)]
