"""Steps on the device: the new tokens of a batch in, the next token of each sequence out."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import torch
import torch_xla

from examples.llama.config import check
from examples.llama.model import Llama
from pyxla.nn import AttentionMetadata, CachedSequence, PagedKVCache, attention_mode, in_mode, pack, split, unpack

# Tokens in a block of the cache.
BLOCK_SIZE = 16
# A draw is among this many tokens: sorting the vocabulary for every row would take longer than the last product.
CANDIDATES = 64
# Random numbers are integers below this, so that they travel with the step's other integers; float32 has them exactly.
RANDOM_LIMIT = 2**24


class Step(NamedTuple):
    """What a step's graph takes besides the model, the last tokens and the cache.

    Attributes:
        packed: by `pyxla.nn.pack`, on the device.
        shapes: of the tensors in it.
    """

    packed: torch.Tensor
    shapes: list[tuple[int, ...]]


class ModelRunner:
    """Runs steps of one batch of sequences: a prefill step computes prompts, a decode step one token per sequence.

    The rows of a step are padded to a bucket; everything else that changes from step to step is data. So XLA compiles
    one graph for the prefill and one for all decode steps, and later prompts in the same buckets use them again.

    Args:
        model: on the device.
        max_seqs: sequences of the batch.
        max_length: tokens of a sequence, prompt and output.
        kv_cache_dtype: of the cache; None: the model's.
        temperature: logits are divided by it, and a token is drawn; 0: the likeliest token.
        seed: of the draws.
        mode: "direct" or "compile"; None: `PYXLA_ATTENTION_MODE`, else "direct".

    Attributes:
        cache: the PagedKVCache, with room for max_seqs sequences of max_length.

    Raises:
        ArgumentError: no such mode; a size or the temperature is out of range.
    """

    def __init__(
        self,
        model: Llama,
        *,
        max_seqs: int,
        max_length: int,
        kv_cache_dtype: torch.dtype | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        mode: str | None = None,
    ):
        config, longest = model.config, model.config.max_position_embeddings
        check.that(1 <= max_length <= longest, "max_length", f"a count in [1, {longest}]", max_length)
        check.that(0 <= temperature < float("inf"), "temperature", "a number of 0 or more", temperature)
        self.model, self.mode, self.device = model, attention_mode(mode), model.norm.device
        self.max_seqs, self.max_length, self.max_blocks = max_seqs, max_length, -(-max_length // BLOCK_SIZE)
        self.cache = PagedKVCache(
            config.num_hidden_layers,
            max_seqs * self.max_blocks,
            BLOCK_SIZE,
            config.num_key_value_heads,
            config.head_dim,
            dtype=kv_cache_dtype or model.dtype,
            device=self.device,
            mesh=model.mesh,
        )
        self._temperature, self._random = temperature, random.Random(seed)
        self._step = in_mode(_step, self.mode)
        self._last = split(_padded([], max_seqs).to(self.device), model.mesh, None)

    def prepare(self, sequences: list[CachedSequence], prompts: list[list[int]] | None = None) -> Step:
        """The host's part of a step: gives slots to its tokens and copies what describes them to the device.

        Prepare a step after the one before it was submitted: the device launches that one meanwhile.

        Args:
            sequences: of the cache; for a decode step those of the step before, in its order.
            prompts: tokens of each, for a prefill step; None: the tokens that the step before returns, which the host
                need not have read.

        Returns:
            The step, for one `submit`.

        Raises:
            ArgumentError: more than max_seqs sequences, or one longer than max_length.
        """
        # -1 - row stands for the token that the last step returned in this row.
        new = [[-1 - row] for row in range(len(sequences))] if prompts is None else prompts
        positions = [s.length + i for s, tokens in zip(sequences, new, strict=True) for i in range(len(tokens))]
        rows = bucket(len(positions))
        metadata = self.cache.extend(
            [(sequence, len(tokens)) for sequence, tokens in zip(sequences, new, strict=True)],
            tokens=rows,
            seqs=self.max_seqs,
            max_blocks=self.max_blocks,
            on_host=True,
        )
        tokens, numbers = [*itertools.chain(*new)], [self._random.randrange(RANDOM_LIMIT) for _ in sequences]
        data = [_padded(tokens, rows), _padded(positions, rows), _padded(numbers, self.max_seqs), *metadata]
        return Step(pack(data, self.device, self.model.mesh), [tuple(part.shape) for part in data])

    def submit(self, step: Step) -> torch.Tensor:
        """Starts a step on the device.

        Args:
            step: what the last `prepare` returned.

        Returns:
            The next token of each sequence, [max_seqs], int32, on the device. Reading it waits for the step.
        """
        with torch.no_grad():
            self._last = self._step(self.model, *step, self._last, self.cache.layers, self._temperature)
        if self.mode == "direct":
            # Runs the traced graph; a compiled function has run already.
            torch_xla.sync()
        return self._last


def bucket(tokens: int) -> int:
    """The rows of a step of so many tokens: a power of two, at least 8."""
    return max(8, 1 << (tokens - 1).bit_length())


def choose(logits: torch.Tensor, temperature: float, numbers: torch.Tensor) -> torch.Tensor:
    """The next tokens, [rows], int32.

    Args:
        logits: [rows, vocabulary].
        temperature: 0: the likeliest token; above: one drawn from the CANDIDATES likeliest.
        numbers: [rows], int32, random in [0, RANDOM_LIMIT).
    """
    if temperature == 0:
        return logits.argmax(dim=-1).to(torch.int32)
    values, ids = logits.float().topk(min(CANDIDATES, logits.shape[-1]))
    sums = (values / temperature).softmax(dim=-1).cumsum(dim=-1)
    # Rounding may leave the last sum below the number.
    rank = (sums <= numbers[:, None] / RANDOM_LIMIT).sum(dim=-1).clamp(max=values.shape[-1] - 1)
    return ids.gather(1, rank[:, None])[:, 0].to(torch.int32)


def _step(
    model: Llama,
    packed: torch.Tensor,
    shapes: list[tuple[int, ...]],
    last: torch.Tensor,
    kv_caches: list[torch.Tensor],
    temperature: float,
) -> torch.Tensor:
    """One graph, from tokens to the next token of each sequence, [seqs], int32; updates `kv_caches` in place."""
    tokens, positions, numbers, *metadata = unpack(packed, shapes)
    metadata = AttentionMetadata(*metadata)
    tokens = torch.where(tokens < 0, last[(-1 - tokens).clamp(min=0)], tokens)
    hidden = model(tokens, positions, kv_caches, metadata)
    ends = (metadata.query_start_loc[1:] - 1).clamp(min=0)
    return choose(model.logits(hidden[ends]), temperature, numbers)


def _padded(values: list[int], size: int) -> torch.Tensor:
    return torch.tensor(values + [0] * (size - len(values)), dtype=torch.int32)
