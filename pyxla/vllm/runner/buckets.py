"""The sizes of steps: XLA compiles a graph for each, so a step is padded to the next one."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

SMALLEST = 16
# Numbers of requests: for each, XLA compiles a graph for each way to sample, so there are fewer below 64, where the
# products read the same weights for any number.
FEWEST_REQUESTS, FULL_REQUESTS = 16, 64
# From here on sizes are also halfway between two powers of two: padding costs time where a step computes, not where it
# reads weights.
FINER = 512


class Bucket(NamedTuple):
    """The shape of a step.

    Attributes:
        tokens: rows of the model.
        requests: requests that fit, each with one token or more; more than `tokens` where that saves graphs.
    """

    tokens: int
    requests: int


class Buckets:
    """The buckets of an engine, the smallest first.

    Each number of tokens has one number of requests: next to many tokens the logits of requests that are not there cost
    little.

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
        self.all = [Bucket(tokens, min(_requests(tokens), max_requests)) for tokens in self._tokens]

    def fitting(self, tokens: int) -> Bucket:
        """The smallest bucket for a number of tokens."""
        return self.all[bisect_left(self._tokens, tokens)]


def _requests(tokens: int) -> int:
    """The smallest number of requests that is not below a number of tokens."""
    size = FEWEST_REQUESTS if tokens <= FEWEST_REQUESTS else FULL_REQUESTS
    while size < tokens:
        size *= 2
    return size
