"""The graph of a step: from the packed inputs to each request's logits and likeliest token, caches updated in place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from vllm.forward_context import ForwardContext, override_forward_context

from pyxla.vllm.runner.inputs import Layout


class Computed(NamedTuple):
    """What a step computes.

    Attributes:
        likeliest: [max_requests], int32; the likeliest next token of each of the step's requests, then padding.
        logits: [requests, vocabulary].
        hidden: [tokens, hidden size].
    """

    likeliest: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor


def step(
    model: torch.nn.Module,
    layers: dict,
    layout: Layout,
    packed: torch.Tensor,
    previous: torch.Tensor,
    *caches: torch.Tensor,
) -> Computed:
    """Computes a step.

    Args:
        model: vLLM's, on the device.
        layers: its attention layers by name, each with its cache.
        layout: of the packed inputs.
        packed: the inputs.
        previous: [max_requests], int32; the result of the step before.
        caches: of the layers, which the step updates in place.

    Returns:
        The likeliest tokens, logits and hidden states.
    """
    tokens, positions, metadata = layout.unpack(packed)
    tokens = torch.where(tokens < 0, previous[(-1 - tokens).clamp(min=0)], tokens)
    with override_forward_context(ForwardContext(layers, metadata, 0)):
        hidden = model(input_ids=tokens, positions=positions)
    last = (metadata.query_start_loc[1:] - 1).clamp(min=0)
    logits = model.compute_logits(hidden[last])
    likeliest = logits.argmax(dim=-1).to(torch.int32)
    return Computed(torch.nn.functional.pad(likeliest, (0, len(previous) - len(likeliest))), logits, hidden)
