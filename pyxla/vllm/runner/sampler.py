"""Samples the tokens of a step from its logits, on the device: the step's second graph, where it needs one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pyxla.vllm.graph import in_mode
from pyxla.vllm.mesh import place
from pyxla.vllm.runner.batch import Plan
from pyxla.vllm.runner.buckets import Bucket
from pyxla.vllm.sampling import (
    VARIANTS,
    Level,
    Logprobs,
    Prepared,
    PromptLogprobs,
    Sampled,
    Sampler,
    Tables,
    Variant,
    sample,
)

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.v1.core.sched.output import SchedulerOutput

# The step's own graph finds the likeliest tokens.
LIKELIEST = Variant(Level.GREEDY, False)


@dataclass
class _Request:
    params: Any
    prompt: list[int]
    output: list[int] = field(default_factory=list)


class StepSampler:
    """The requests' parameters and tokens, and the graphs that sample: one for each number of rows and variant.

    Args:
        model: vLLM's configuration of the model.
        max_requests: requests of the largest step.
        device: the XLA device.
        mode: "direct" or "compile".
        compute_logits: the model's: [rows, hidden size] to [rows, vocabulary].
    """

    def __init__(
        self,
        model: ModelConfig,
        max_requests: int,
        device: torch.device,
        mode: str,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
    ):
        vocab_size, wanted = model.get_vocab_size(), model.max_logprobs
        num_logprobs = vocab_size if wanted == -1 else min(wanted, vocab_size)
        self._vocab_size = vocab_size
        self._sampler = Sampler(vocab_size, max_requests, device, model.seed or 0, mode)
        self._device, self._max_requests = device, max_requests
        self._requests: dict[str, _Request] = {}
        # They have a slot of the sampler. There is one for each request of a step: who waits may lose it to another.
        self._held: set[str] = set()
        self._prompts = PromptLogprobs(compute_logits, num_logprobs, logprobs_mode=model.logprobs_mode, mode=mode)
        self._graphs = {
            variant: in_mode(_graph(variant, max_requests, num_logprobs, model.logprobs_mode), mode)
            for variant in VARIANTS
        }

    def update(self, scheduled: SchedulerOutput) -> None:
        """Takes over which requests are new and which have ended."""
        for name in scheduled.finished_req_ids:
            self._requests.pop(name, None)
            self._prompts.remove(name)
            self._drop(name)
        for new in scheduled.scheduled_new_reqs:
            params, prompt = new.sampling_params, list(new.prompt_token_ids)
            self._requests[new.req_id] = _Request(params, prompt)
            if params.prompt_logprobs is not None:
                wanted = params.prompt_logprobs
                self._prompts.add(new.req_id, prompt, self._vocab_size if wanted == -1 else wanted)

    def waits_for_tokens(self, names: list[str]) -> bool:
        """Whether `prepare` needs the tokens of the step before."""
        return self._sampler.waits_for_tokens([name for name in names if name in self._held])

    def prepare(self, plan: Plan, bucket: Bucket, masks: dict[str, np.ndarray]) -> Prepared:
        """The inputs of a step's second graph.

        Args:
            plan: the step.
            bucket: its shape.
            masks: request -> the mask of its grammar.
        """
        waiting = [name for name in plan.ids if name not in self._held]
        if len(self._held) + len(waiting) > self._max_requests:
            for name in self._held - set(plan.ids):
                self._drop(name)
        for name in waiting:
            request = self._requests[name]
            self._sampler.add(name, request.params, request.prompt, request.output)
            self._held.add(name)
        positions = [
            max(int(end) - len(self._requests[name].prompt), 0) for name, end in zip(plan.ids, plan.ends, strict=True)
        ]
        return self._sampler.prepare(plan.ids, bucket.requests, positions, plan.samples.tolist(), masks)

    def prompt_logprobs(self, plan: Plan, counts: Sequence[int], hidden: torch.Tensor) -> dict[str, Logprobs]:
        """The log probabilities of the prompts that a step has read to their ends; waits for the step.

        Args:
            plan: the step.
            counts: of each request, how many tokens the step computes.
            hidden: [tokens, hidden size] of the step.
        """
        found, first = {}, 0
        for name, end, count in zip(plan.ids, plan.ends.tolist(), counts, strict=True):
            scored = self._prompts.step(name, hidden, first, end - count, count)
            if scored is not None:
                found[name] = scored
            first += count
        return found

    def run(self, prepared: Prepared, tokens: torch.Tensor, logits: torch.Tensor) -> Sampled:
        """Samples a step.

        Args:
            prepared: its inputs.
            tokens: [max_requests], int32; the likeliest tokens.
            logits: [requests, vocabulary].

        Returns:
            Tokens as `tokens` are; log probabilities of the step's rows.
        """
        if prepared.variant == LIKELIEST:
            return Sampled(tokens, None)
        packed, tables = place(prepared.packed.to(self._device)), self._sampler.tables
        return self._graphs[prepared.variant](logits, packed, *tables, prepared.mask)

    def blank(self, bucket: Bucket, variant: Variant) -> Prepared:
        """Inputs of a variant without requests."""
        return self._sampler.blank(bucket.requests, variant)

    def warm_up(self) -> None:
        """Compiles what writes the tables."""
        self._sampler.warm_up()

    def warm_up_prompts(self, hidden: torch.Tensor) -> None:
        """Compiles what scores prompts in steps with such hidden states."""
        self._prompts.add("", [0, 0], 0)
        self._prompts.step("", hidden, 0, 0, 2)

    def has_read(self, plan: Plan, tokens: np.ndarray) -> None:
        """Notes the tokens of a step."""
        for name, token, samples in zip(plan.ids, tokens.tolist(), plan.samples.tolist(), strict=True):
            if samples and name in self._requests:
                self._requests[name].output.append(token)

    def _drop(self, name: str) -> None:
        if name in self._held:
            self._held.remove(name)
            self._sampler.remove(name)


def _graph(variant: Variant, max_requests: int, num_logprobs: int, logprobs_mode: str) -> Callable[..., Sampled]:
    def sampled(
        logits: torch.Tensor, packed: torch.Tensor, counts: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor
    ) -> Sampled:
        tokens, logprobs = sample(logits, packed, Tables(counts, bias), mask, variant, num_logprobs, logprobs_mode)
        return Sampled(torch.nn.functional.pad(tokens, (0, max_requests - len(tokens))), logprobs)

    return sampled
