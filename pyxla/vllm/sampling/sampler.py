"""The sampling state of the running requests, and the inputs of each step's `sample`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from pyxla.op.arguments import Check
from pyxla.vllm.mesh import place
from pyxla.vllm.sampling.bans import Bans
from pyxla.vllm.sampling.rows import as_integers, neutral
from pyxla.vllm.sampling.sample import MIN_TEMPERATURE, Level, Variant
from pyxla.vllm.sampling.tables import counts_of, empty_tables, load

check = Check("Sampler")


class Prepared(NamedTuple):
    """The inputs of a step's `sample`, besides the logits and the tables.

    Attributes:
        variant: which graph.
        packed: [rows, COLUMNS], int32, on the CPU, to be copied together with the other inputs of the step.
        mask: [rows, words], int32, on the device; copied only in steps with a grammar.
    """

    variant: Variant
    packed: torch.Tensor
    mask: torch.Tensor


@dataclass
class _Request:
    slot: int
    output: Sequence[int]
    bans: Bans


class Sampler:
    """The sampling state of at most `max_num_seqs` requests.

    The tables take 8 bytes per token of the vocabulary and request: 66 MB for 64 requests and 128,256 tokens. A step
    uses them on the level ADJUSTED alone; a row of them is written when a request with penalties or biases is added,
    or when the tokens change that it may not generate.

    Args:
        vocab_size: number of logits of the model.
        max_num_seqs: most requests at a time.
        device: an XLA device.
        seed: for the draws of requests without a seed.
        mode: "direct" or "compile", as of the graphs in pyxla/vllm/graph.py.

    Attributes:
        tables: for `sample`.
    """

    def __init__(
        self, vocab_size: int, max_num_seqs: int, device: torch.device | str, seed: int = 0, mode: str = "compile"
    ):
        check.that(vocab_size >= 1, "vocab_size", "a count of 1 or more", vocab_size)
        check.that(max_num_seqs >= 1, "max_num_seqs", "a count of 1 or more", max_num_seqs)
        self.tables = empty_tables(max_num_seqs, vocab_size, device)
        self._vocab_size, self._mode = vocab_size, mode
        self._random = np.random.default_rng(seed)
        self._free = list(range(max_num_seqs - 1, -1, -1))
        self._requests: dict[str, _Request] = {}
        # Of each slot: its record, its level without biases, whether its tokens count, and whether it wants logprobs.
        self._records = neutral(max_num_seqs, vocab_size)
        self._records["slot"] = np.arange(max_num_seqs)
        self._levels = np.zeros(max_num_seqs, np.int32)
        self._penalized = np.zeros(max_num_seqs, bool)
        self._logprobs = np.zeros(max_num_seqs, bool)
        self._open_masks: dict[int, torch.Tensor] = {}

    def add(self, request_id: str, params: Any, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Adds a request, also one that was removed before and goes on.

        Args:
            request_id: its name.
            params: vLLM's SamplingParams, which `check_parameters` accepted.
            prompt: tokens of its prompt.
            output: the tokens that it has generated; not copied, the caller appends to it.

        Raises:
            ArgumentError: the name is taken, or there are max_num_seqs requests.
        """
        check.that(request_id not in self._requests, "request_id", "a new name", request_id)
        check.that(len(self._free) > 0, "request_id", f"at most {len(self._records)} requests", "one more")
        slot = self._free.pop()
        request = self._requests[request_id] = _Request(slot, output, Bans(params, self._vocab_size))
        record = self._records[slot : slot + 1]
        record[:] = neutral(1, self._vocab_size)
        record["slot"] = slot
        seed = self._random.integers(2**64, dtype=np.uint64) if params.seed is None else params.seed % 2**64
        record["seed_low"], record["seed_high"] = np.array([seed], np.uint64).view(np.int32)
        record["presence"], record["frequency"] = params.presence_penalty, params.frequency_penalty
        record["repetition"] = params.repetition_penalty
        level = Level.GREEDY
        if params.temperature >= MIN_TEMPERATURE:
            record["temperature"], record["min_p"], record["top_p"] = params.temperature, params.min_p, params.top_p
            if 0 < params.top_k < self._vocab_size:
                record["top_k"] = params.top_k
            level = Level.FILTERED if record["top_k"] < self._vocab_size or params.top_p < 1 else Level.RANDOM
        penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty
        self._penalized[slot] = penalties != (0, 0, 1)
        if self._penalized[slot]:
            level = Level.ADJUSTED
            load(self.tables.counts, slot, counts_of(prompt, output, self._vocab_size), self._mode)
        self._levels[slot], self._logprobs[slot] = level, params.logprobs is not None
        if request.bans.fixed:
            self._load_bias(request)

    def remove(self, request_id: str) -> None:
        """Removes a request.

        Args:
            request_id: its name.

        Raises:
            ArgumentError: there is no such request.
        """
        check.that(request_id in self._requests, "request_id", "the name of a request", request_id)
        self._free.append(self._requests.pop(request_id).slot)

    def waits_for_tokens(self, request_ids: Sequence[str]) -> bool:
        """Whether the next step of these requests can be prepared only when their last tokens are on the host.

        That is so for bad words of several tokens, and for grammars, which the caller knows.
        """
        return any(self._requests[name].bans.sequences for name in request_ids)

    def prepare(
        self,
        request_ids: Sequence[str],
        num_rows: int,
        positions: Sequence[int],
        sampled: Sequence[bool],
        grammar: Mapping[str, np.ndarray] | None = None,
    ) -> Prepared:
        """Returns the inputs of a step.

        Args:
            request_ids: the requests of the first rows, in order.
            num_rows: rows of the step.
            positions: per request, how many tokens it has generated, also those that are not in `output` yet.
            sampled: per request, whether its token is kept; False for a part of a prompt before the last one.
            grammar: words of xgrammar's mask, int32, of each request that has one.

        Raises:
            ArgumentError: an unknown request; more requests than rows; a mask of another size; `waits_for_tokens`,
                and a token is not in `output`.
        """
        check.that(len(request_ids) <= num_rows, "num_rows", f"at least {len(request_ids)}", num_rows)
        unknown = [name for name in request_ids if name not in self._requests]
        check.that(not unknown, "request_ids", "names of requests", unknown)
        requests = [self._requests[name] for name in request_ids]
        for request, position, kept in zip(requests, positions, sampled, strict=True):
            if kept and request.bans.vary:
                known = not request.bans.sequences or len(request.output) == position
                check.that(known, "positions", f"{len(request.output)}, as bad words need all tokens", position)
                if request.bans.update(request.output, position):
                    self._load_bias(request)
        slots = np.array([request.slot for request in requests], np.int64)
        kept = np.array(sampled, bool)
        rows = neutral(num_rows, self._vocab_size)
        chosen = self._records[slots]
        chosen["position"], chosen["counted"] = positions, self._penalized[slots]
        # A row whose token is dropped stays neutral.
        rows[: len(slots)][kept] = chosen[kept]
        adjusted = bool(grammar) or chosen["biased"][kept].any()
        level = Level.ADJUSTED if adjusted else Level(self._levels[slots][kept].max(initial=0))
        variant = Variant(level, bool(self._logprobs[slots][kept].any()))
        return Prepared(variant, as_integers(rows), self._mask(request_ids, num_rows, grammar))

    def blank(self, num_rows: int, variant: Variant) -> Prepared:
        """Inputs of this variant without a request, for compiling it before the first request.

        Args:
            num_rows: rows of the step.
            variant: one of VARIANTS.
        """
        return Prepared(variant, as_integers(neutral(num_rows, self._vocab_size)), self._mask((), num_rows, None))

    def warm_up(self) -> None:
        """Compiles the graphs that write a row of a table. Call it before the first request, as it clears a row."""
        check.that(not self._requests, "warm_up", "a call before the first request", f"{len(self._requests)} requests")
        for table, dtype in zip(self.tables, (np.int32, np.float32), strict=True):
            load(table, 0, np.zeros(self._vocab_size, dtype), self._mode)

    def _load_bias(self, request: _Request) -> None:
        row = request.bans.bias()
        self._records["biased"][request.slot] = row is not None
        if row is not None:
            load(self.tables.bias, request.slot, row, self._mode)

    def _mask(
        self, request_ids: Sequence[str], num_rows: int, grammar: Mapping[str, np.ndarray] | None
    ) -> torch.Tensor:
        device, words = self.tables.bias.device, -(-self._vocab_size // 32)
        if not grammar:
            if num_rows not in self._open_masks:
                self._open_masks[num_rows] = place(torch.full((num_rows, words), -1, dtype=torch.int32).to(device))
            return self._open_masks[num_rows]
        mask = np.full((num_rows, words), -1, np.int32)
        for row, name in enumerate(request_ids):
            if name in grammar:
                got = grammar[name].shape
                check.that(got == (words,), "grammar", f"{words} words", got)
                mask[row] = grammar[name]
        return place(torch.from_numpy(mask).to(device))
