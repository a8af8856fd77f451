"""What a request adds to its logits: its biases, and -infinity for the tokens that it may not generate now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Bans:
    """The biases and forbidden tokens of a request.

    Args:
        params: vLLM's SamplingParams.
        vocab_size: number of logits of the model; no token outside of it can be generated.

    Attributes:
        fixed: whether there is a bias or a token that is forbidden for good.
        sequences: bad words of several tokens: the last one is forbidden where the output ends with the others.
        vary: whether other tokens may be forbidden later.
    """

    def __init__(self, params: Any, vocab_size: int):
        self._vocab_size = vocab_size
        self._bias = params.logit_bias or {}
        self._allowed = params.allowed_token_ids
        # A tokenizer may have more tokens than the model.
        words = [word for word in params.bad_words_token_ids or [] if max(word) < vocab_size]
        self._words = [word[0] for word in words if len(word) == 1]
        self.sequences = [word for word in words if len(word) > 1]
        self._min_tokens = params.min_tokens
        self._stops = {token for token in params.all_stop_token_ids if token < vocab_size}
        self._now: set[int] = set()
        self.fixed = bool(self._bias or self._allowed or self._words)
        self.vary = bool(self.sequences or (self._min_tokens and self._stops))

    def update(self, output: Sequence[int], position: int) -> bool:
        """Finds the tokens that are forbidden now.

        Args:
            output: the tokens that the request has generated, as far as they are known.
            position: how many it has generated.

        Returns:
            Whether they are others than before.
        """
        before, self._now = self._now, set(self._stops) if position < self._min_tokens else set()
        for *start, last in self.sequences:
            if list(output[max(position - len(start), 0) : position]) == start:
                self._now.add(last)
        return self._now != before

    def bias(self) -> np.ndarray | None:
        """[vocab_size], float32: what to add to the logits now; None: nothing."""
        if not self.fixed and not self._now:
            return None
        row = np.full(self._vocab_size, -np.inf if self._allowed else 0, np.float32)
        row[list(self._allowed or ())] = 0
        row[[*self._words, *self._now]] = -np.inf
        for token, bias in self._bias.items():
            row[token] += bias
        return row
