"""A step that the device computes, and its tokens once they are read."""

from __future__ import annotations

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from pyxla.vllm.runner.batch import Batch, Plan


class Flight(AsyncModelRunnerOutput):
    """A launched step. With async scheduling vLLM reads it in another thread, after it has launched the next one.

    Args:
        plan: the step.
        tokens: [max_requests], on the device; what it generates.
        batch: gets the tokens.
    """

    def __init__(self, plan: Plan, tokens: torch.Tensor, batch: Batch):
        self._plan, self._tokens, self._batch = plan, tokens, batch

    def get_output(self) -> ModelRunnerOutput:
        """Waits for the step."""
        plan = self._plan
        tokens = self._tokens.cpu().numpy()[: len(plan.ids)]
        self._batch.has_read(plan, tokens)
        generated = zip(tokens.tolist(), plan.samples.tolist(), strict=True)
        return ModelRunnerOutput(
            req_ids=plan.ids,
            req_id_to_index={request: index for index, request in enumerate(plan.ids)},
            sampled_token_ids=[[token] if samples else [] for token, samples in generated],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
