"""A step that the device computes, and its tokens once they are read."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from vllm.v1.outputs import AsyncModelRunnerOutput, LogprobsLists, LogprobsTensors, ModelRunnerOutput

from pyxla.vllm.releases import numbers
from pyxla.vllm.runner.batch import Plan
from pyxla.vllm.sampling import Logprobs, Sampled


class Flight(AsyncModelRunnerOutput):
    """A launched step. With async scheduling vLLM reads it in another thread, after it has launched the next one.

    Args:
        plan: the step.
        sampled: its tokens, [max_requests], and log probabilities, on the device.
        prompts: log probabilities of the prompts that end in the step.
        reader: is called once, with the plan and the tokens of its requests.
    """

    def __init__(
        self,
        plan: Plan,
        sampled: Sampled,
        prompts: dict[str, Logprobs],
        reader: Callable[[Plan, np.ndarray], None],
    ):
        self._plan, self._sampled, self._prompts, self._reader = plan, sampled, prompts, reader
        self._lock = threading.Lock()
        self._tokens: np.ndarray | None = None

    def read(self) -> np.ndarray:
        """Waits for the step; returns the tokens of its requests."""
        with self._lock:
            if self._tokens is None:
                self._tokens = self._sampled.tokens.cpu().numpy()[: len(self._plan.ids)]
                self._reader(self._plan, self._tokens)
            return self._tokens

    def get_output(self) -> ModelRunnerOutput:
        """Waits for the step."""
        plan, tokens = self._plan, self.read()
        logprobs = self._sampled.logprobs
        return ModelRunnerOutput(
            req_ids=plan.ids,
            req_id_to_index={request: index for index, request in enumerate(plan.ids)},
            # One token or none.
            sampled_token_ids=[numbers(tokens[i : i + samples]) for i, samples in enumerate(plan.samples.tolist())],
            logprobs=logprobs and LogprobsLists(*(numbers(part.cpu().numpy()[: len(plan.ids)]) for part in logprobs)),
            prompt_logprobs_dict={name: LogprobsTensors(*scored) for name, scored in self._prompts.items()},
            pooler_output=[],
        )
