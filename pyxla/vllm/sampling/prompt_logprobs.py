"""Log probabilities of the tokens of prompts, from the hidden states of the steps that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pyxla.op.arguments import Check
from pyxla.vllm.graph import in_mode
from pyxla.vllm.mesh import place
from pyxla.vllm.sampling.logprobs import Logprobs, score

check = Check("PromptLogprobs")


@dataclass
class _Prompt:
    tokens: np.ndarray
    num: int
    scored: Logprobs


class PromptLogprobs:
    """Collects the log probabilities of prompts over the steps that read them.

    The logits of a prompt would be as large as the vocabulary times its length: they are computed for some rows at a
    time, by one graph per number of rows of the hidden states.

    Args:
        compute_logits: [rows, hidden size] to [rows, vocabulary].
        num_logprobs: how many of the likeliest tokens a graph returns; no request may ask for more.
        chunk_rows: rows at a time.
        logprobs_mode: one of LOGPROBS_MODES; nothing is done to the logits of prompts.
        mode: "direct" or "compile", as of the graphs in pyxla/vllm/graph.py.
    """

    def __init__(
        self,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
        num_logprobs: int = 20,
        chunk_rows: int = 64,
        logprobs_mode: str = "raw_logprobs",
        mode: str = "compile",
    ):
        def chunk(hidden: torch.Tensor, rows_and_tokens: torch.Tensor) -> Logprobs:
            rows, tokens = rows_and_tokens.unbind(0)
            logits = compute_logits(hidden.index_select(0, rows))
            return score(logits, tokens, num_logprobs, logprobs_mode.endswith("logprobs"))

        self._num_logprobs, self._chunk_rows = num_logprobs, chunk_rows
        self._chunk = in_mode(chunk, mode)
        self._prompts: dict[str, _Prompt] = {}

    def add(self, request_id: str, prompt: Sequence[int], num: int) -> None:
        """Adds a request with prompt_logprobs; one that starts again replaces itself.

        Args:
            request_id: its name.
            prompt: tokens of its prompt.
            num: how many of the likeliest tokens; 0: those of the prompt alone.

        Raises:
            ArgumentError: `num` is above num_logprobs.
        """
        check.that(0 <= num <= self._num_logprobs, "num", f"a count in [0, {self._num_logprobs}]", num)
        rows = max(len(prompt) - 1, 0)
        scored = Logprobs(
            torch.zeros(rows, num + 1, dtype=torch.int32),
            torch.zeros(rows, num + 1),
            torch.zeros(rows, dtype=torch.int32),
        )
        self._prompts[request_id] = _Prompt(np.asarray(prompt, np.int32), num, scored)

    def remove(self, request_id: str) -> None:
        """Forgets a request, also one that it does not have."""
        self._prompts.pop(request_id, None)

    def step(self, request_id: str, hidden: torch.Tensor, first: int, computed: int, scheduled: int) -> Logprobs | None:
        """Takes the hidden states of a step.

        Args:
            request_id: the request; nothing happens for one without prompt_logprobs.
            hidden: [rows, hidden size] of the step, on the device.
            first: the request's first row.
            computed: how many of its tokens were computed before the step.
            scheduled: how many the step computes.

        Returns:
            [prompt - 1, num + 1] on the CPU, for the prompt's tokens from the second on, once its last token was read:
            then the request is removed.
        """
        if request_id not in self._prompts:
            return None
        prompt = self._prompts[request_id]
        last = min(computed + scheduled, len(prompt.tokens) - 1)
        for start in range(computed, last, self._chunk_rows):
            count = min(self._chunk_rows, last - start)
            rows_and_tokens = np.zeros((2, self._chunk_rows), np.int32)
            rows_and_tokens[0, :count] = np.arange(count) + first + start - computed
            rows_and_tokens[1, :count] = prompt.tokens[start + 1 : start + 1 + count]
            chunk = self._chunk(hidden, place(torch.from_numpy(rows_and_tokens).to(hidden.device)))
            for whole, part in zip(prompt.scored, map(torch.Tensor.cpu, chunk), strict=True):
                whole[start : start + count] = part[:count, : whole.shape[1]] if part.dim() == 2 else part[:count]
        if computed + scheduled < len(prompt.tokens):
            return None
        return self._prompts.pop(request_id).scored
