"""Inputs that paged_attention and the other ops that compute it reject, for their tests."""

from collections.abc import Callable
from typing import Any

import torch
from pyxla_kernels._paged_attention.batches import integers

from pyxla.testing import BadInput


def changed(dtype: torch.dtype = torch.float32, **changes) -> dict:
    """Good arguments, of lengths (2, 20), (1, 30) and (3, 3) and 64 blocks of 8, with some of them replaced."""
    return {
        "query": torch.ones(6, 8, 64, dtype=dtype),
        "kv_cache": torch.ones(2, 64, 8, 2, 64, dtype=dtype),
        "context_lens": integers(20, 30, 3),
        "block_tables": torch.arange(18, dtype=torch.int32).reshape(3, 6),
        "query_start_loc": integers(0, 2, 3, 6),
        "num_seqs": integers(3),
        "scale": 0.125,
        "sliding_window": None,
        "soft_cap": None,
        "alibi_slopes": None,
        "sinks": None,
        "kv_scales": None,
    } | changes


def table_with(seq: int, index: int, block: int) -> torch.Tensor:
    table = changed()["block_tables"]
    table[seq, index] = block
    return table


class Bad:
    """Makes inputs that an op rejects: its good arguments with some of them changed.

    Args:
        op: the op's name.
        good: returns the op's good arguments with the given ones replaced; dtypes and shapes as in `changed`.
    """

    def __init__(self, op: str, good: Callable[..., dict]):
        self.op, self.good = op, good

    def __call__(
        self, expected: str, got: str, argument: str | None = None, at_run_time: bool = False, **changes: Any
    ) -> BadInput:
        """The message names `argument` or, if that is None, the first argument that changed."""
        argument = argument or next(iter(changes))
        message = f"{self.op}: {argument}: expected {expected}, got {got}"
        return BadInput(f"{argument}-{got}".replace(" ", "-"), lambda g: self.good(**changes), message, at_run_time)


def size(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def bad_lengths(bad: Bad) -> list[BadInput]:
    """Length tensors and numbers that every op rejects because of their dtype, shape or value."""

    def value(expected: str, got: str, **changes: Any) -> BadInput:
        return bad(expected, got, at_run_time=True, **changes)

    return [
        bad("dtype int32", "int64", context_lens=torch.tensor([20, 30, 3])),
        bad("rank 1", "shape (1, 3)", context_lens=integers(20, 30, 3)[None]),
        bad("dtype int32", "float32", block_tables=size(3, 6)),
        bad("rank 2", "shape (18,)", block_tables=size(18).int()),
        bad("shape (3, 9)", "(2, 9)", block_tables=size(2, 9).int()),
        bad("dtype int32", "int64", query_start_loc=torch.tensor([0, 2, 3, 6])),
        bad("shape (4,)", "(3,)", query_start_loc=integers(0, 2, 6)),
        bad("dtype int32", "int64", num_seqs=torch.tensor([3])),
        bad("shape (1,)", "()", num_seqs=integers(3)[0]),
        *(bad("a number that is finite in float32", got, scale=float(got)) for got in ("nan", "inf", "-1e+39")),
        bad("a count of 1 or more", "0", sliding_window=0),
        bad("a count of 1 or more", "-3", sliding_window=-3),
        *(bad("a number in [1e-30, 1000]", got, soft_cap=float(got)) for got in ("0", "1e-39", "1001", "nan")),
        # From here on only the data is wrong.
        value("a count in [0, 3]", "4", num_seqs=integers(4)),
        value("a count in [0, 3]", "-1", num_seqs=integers(-1)),
        value("0", "1 at index 0", query_start_loc=integers(1, 2, 3, 6)),
        value("a row in [3, 6]", "2 at index 3", query_start_loc=integers(0, 2, 3, 2)),
        value("a row in [3, 6]", "7 at index 3", query_start_loc=integers(0, 2, 3, 7)),
        # In 32-bit arithmetic every difference of neighbours is positive, and sequence 1 has 40 new tokens.
        value(
            "a row in [0, 6]",
            "2147483640 at index 1",
            query_start_loc=integers(0, 2**31 - 8, 32 - 2**31, 6),
            context_lens=integers(20, 45, 3),
        ),
        value("a length in [1, 48]", "-1 at sequence 1", context_lens=integers(20, -1, 3)),
        value("a length in [3, 48]", "2 at sequence 2", context_lens=integers(20, 30, 2)),
        value("a length in [2, 48]", "49 at sequence 0", context_lens=integers(49, 30, 3)),
        value("a block id in [0, 64)", "-3 at sequence 1, index 3", block_tables=table_with(1, 3, -3)),
        value("a block id in [0, 64)", "64 at sequence 0, index 0", block_tables=table_with(0, 0, 64)),
        value(
            "a block id in [0, 64)", "99 at sequence 1, index 2", block_tables=table_with(1, 2, 99), sliding_window=10
        ),
    ]
