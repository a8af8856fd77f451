"""The requests that the engine has scheduled and not finished, a row each: their tokens and their blocks."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyxla.vllm.runner.buckets import Bucket
from pyxla.vllm.runner.inputs import Layout

if TYPE_CHECKING:
    import torch
    from vllm.v1.core.sched.output import SchedulerOutput

UNREAD = -1


class Plan(NamedTuple):
    """A step on the host.

    Attributes:
        ids: its requests.
        rows: [requests]; their rows in the batch.
        holders: [requests]; who had the row when the step was planned.
        ends: [requests]; each request's tokens before the one that the step generates.
        samples: [requests]; whether it generates one. A part of a prompt does not.
        packed: the data to copy.
    """

    ids: list[str]
    rows: np.ndarray
    holders: np.ndarray
    ends: np.ndarray
    samples: np.ndarray
    packed: torch.Tensor


class Batch:
    """Keeps the requests between steps, as vLLM's scheduler sends only what changes.

    A token that the device has generated and the host has not read yet is UNREAD; the next step takes it from the step
    before, on the device.

    Args:
        rows: requests to begin with; more make it grow.
        max_length: tokens of a request.
        max_blocks: blocks of a request.
        block_size: tokens of a block.
    """

    def __init__(self, rows: int, max_length: int, max_blocks: int, block_size: int):
        self._block_size = block_size
        self._row_of: dict[str, int] = {}
        self._free: list[int] = []
        # One more: the token after a request's last one is generated, if the step was launched before that was known.
        self._tokens = np.zeros((0, max_length + 1), dtype=np.int32)
        self._blocks = np.zeros((0, max_blocks), dtype=np.int32)
        self._num_blocks, self._length, self._computed, self._holder, self._index = np.zeros((5, 0), dtype=np.int64)
        self._grow(rows)
        self._holders = 0

    def update(self, scheduled: SchedulerOutput, resumed: Collection[str] = ()) -> None:
        """Takes over what has changed since the step before.

        Args:
            scheduled: the step.
            resumed: those of its requests that get all their blocks anew.
        """
        for request in scheduled.finished_req_ids:
            row = self._row_of.pop(request, None)
            if row is not None:
                self._free.append(row)
                self._holder[row] = -1
        for new in scheduled.scheduled_new_reqs:
            row = self._take(new.req_id)
            length = len(new.prompt_token_ids)
            self._tokens[row, :length] = new.prompt_token_ids
            self._length[row], self._computed[row] = length, new.num_computed_tokens
            self._append_blocks(row, new.block_ids[0])
        cached = scheduled.scheduled_cached_reqs
        for i, request in enumerate(cached.req_ids):
            row = self._row_of[request]
            self._computed[row] = cached.num_computed_tokens[i]
            if request in resumed:
                self._num_blocks[row] = 0
            if cached.new_block_ids[i] is not None:
                self._append_blocks(row, cached.new_block_ids[i][0])

    def plan(self, scheduled: dict[str, int], bucket: Bucket, layout: Layout) -> Plan:
        """The next step.

        Args:
            scheduled: request -> how many of its tokens are computed.
            bucket, layout: the step's shape.
        """
        ids, requests = list(scheduled), len(scheduled)
        rows = np.fromiter((self._row_of[request] for request in ids), np.int64, requests)
        counts = np.fromiter(scheduled.values(), np.int64, requests)
        ends = self._computed[rows] + counts
        starts = np.concatenate(([0], np.cumsum(counts)))
        total = starts[-1]
        row = np.repeat(rows, counts)
        position = np.arange(total) + np.repeat(self._computed[rows] - starts[:-1], counts)
        packed, (tokens, positions, slots, lengths, blocks, query_start, count) = layout.empty()
        known = self._tokens[row, position]
        tokens[:total] = np.where(known == UNREAD, -1 - self._index[row], known)
        positions[:total] = position
        slots[:total] = self._blocks[row, position // self._block_size] * self._block_size + position % self._block_size
        lengths[:requests] = ends
        blocks[:requests] = self._blocks[rows]
        query_start[: requests + 1], query_start[requests + 1 :] = starts, total
        count[0] = requests
        return Plan(ids, rows, self._holder[rows], ends, ends >= self._length[rows], packed)

    def launched(self, plan: Plan) -> None:
        """Notes that the device computes the step: its tokens are there, unread."""
        rows = plan.rows[plan.samples]
        self._tokens[rows, plan.ends[plan.samples]] = UNREAD
        self._length[rows] += 1
        self._index[rows] = np.flatnonzero(plan.samples)

    def has_read(self, plan: Plan, tokens: np.ndarray) -> None:
        """Fills in the tokens of a step.

        Args:
            plan: the step.
            tokens: [requests]; what it generated.
        """
        # A request may be gone, and another one have its row.
        wanted = plan.samples & (self._holder[plan.rows] == plan.holders)
        self._tokens[plan.rows[wanted], plan.ends[wanted]] = tokens[wanted]

    def _take(self, request: str) -> int:
        if not self._free:
            self._grow(len(self._tokens))
        row = self._row_of[request] = self._free.pop()
        self._holders += 1
        self._holder[row], self._num_blocks[row] = self._holders, 0
        return row

    def _append_blocks(self, row: int, blocks: list[int]) -> None:
        first = self._num_blocks[row]
        self._num_blocks[row] += len(blocks)
        self._blocks[row, first : first + len(blocks)] = blocks

    def _grow(self, rows: int) -> None:
        self._free += range(len(self._tokens) + rows - 1, len(self._tokens) - 1, -1)
        for name in ("_tokens", "_blocks", "_num_blocks", "_length", "_computed", "_holder", "_index"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate((array, np.zeros((rows, *array.shape[1:]), array.dtype))))
