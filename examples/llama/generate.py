"""One batch of prompts, continued: a prefill step, then decode steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from examples.llama.config import LlamaConfig, check
from examples.llama.runner import ModelRunner
from pyxla.nn import CachedSequence


def generate(
    runner: ModelRunner, prompts: list[list[int]], max_tokens: int, stop: Collection[int] = ()
) -> list[list[int]]:
    """Continues each prompt.

    Args:
        runner: for at least so many sequences of this length.
        prompts: tokens of each.
        max_tokens: how many to generate per prompt.
        stop: tokens that end a text; such a token is its last.

    Returns:
        The new tokens of each prompt.

    Raises:
        ArgumentError: as `require`; more prompts than the runner's sequences.
    """
    outputs: list[list[int]] = [[] for _ in prompts]
    for tokens in stream(runner, prompts, max_tokens):
        for output, token in zip(outputs, tokens, strict=True):
            if not output or output[-1] not in stop:
                output.append(token)
        if all(output[-1] in stop for output in outputs):
            break
    return outputs


def stream(runner: ModelRunner, prompts: list[list[int]], max_tokens: int) -> Iterator[list[int]]:
    """As `generate`, but step by step, and no token ends a text.

    Args:
        runner, prompts, max_tokens: as in `generate`.

    Yields:
        The next token of each prompt.
    """
    require(runner.model.config, prompts, max_tokens, runner.max_length)
    sequences = [runner.cache.open() for _ in prompts]
    try:
        submitted = _submitted(runner, sequences, prompts, max_tokens)
        tokens = next(submitted)
        for following in submitted:
            yield tokens.tolist()[: len(prompts)]
            tokens = following
        yield tokens.tolist()[: len(prompts)]
    finally:
        for sequence in sequences:
            runner.cache.close(sequence)


def _submitted(
    runner: ModelRunner, sequences: list[CachedSequence], prompts: list[list[int]], steps: int
) -> Iterator[torch.Tensor]:
    """The tokens of each step, on the device, as soon as it is submitted.

    The caller reads them after the next step is submitted, so that the device need not wait for the host. That step is
    prepared while the device still launches this one.
    """
    step = runner.prepare(sequences, prompts)
    for left in reversed(range(steps)):
        tokens = runner.submit(step)
        if left:
            step = runner.prepare(sequences)
        yield tokens


def require(config: LlamaConfig, prompts: list[list[int]], max_tokens: int, max_length: int) -> None:
    """Raises for prompts that cannot be continued.

    Args:
        config: the model's.
        prompts: tokens of each.
        max_tokens: how many to generate per prompt.
        max_length: the most tokens of a sequence, prompt and output.

    Raises:
        ArgumentError: there is no prompt; one is empty, too long, or contains a token that the model does not know.
    """
    check.that(bool(prompts), "prompt", "at least one", "none")
    check.that(max_tokens >= 1, "max_tokens", "a count of 1 or more", max_tokens)
    hint = "shorten the prompt, or ask for fewer tokens"
    for prompt in prompts:
        count = len(prompt)
        check.that(count >= 1, "prompt", "at least 1 token", count)
        wrong = next((token for token in prompt if not 0 <= token < config.vocab_size), None)
        check.that(wrong is None, "prompt", f"tokens in [0, {config.vocab_size})", wrong)
        limit, got = f"at most {max_length} tokens with max_tokens", f"{count} and {max_tokens}"
        check.that(count + max_tokens <= max_length, "prompt", limit, got, hint)
