"""What a step changes the logits by, on the device: a row of the vocabulary's length for each request.

A request keeps its slot in the tables while it runs, so nothing moves when the rows of a batch do. Counting the tokens
anew in each step instead would take all tokens of all requests, and a step could not start before the last one's token
is on the host: here the step itself counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from pyxla.torch_xla_patches.traced_graph import donate, is_traced
from pyxla.vllm.graph import in_mode
from pyxla.vllm.mesh import place
from pyxla.vllm.sampling.rows import Rows

# The bit of a count that says that the token is in the prompt.
IN_PROMPT = 1 << 30


class Tables(NamedTuple):
    """The tables; both have the shape [slots, vocabulary].

    Attributes:
        counts: int32; how often the request has generated the token, and IN_PROMPT if its prompt has it.
        bias: float32; added to the logits. -infinity: the token is not allowed.
    """

    counts: torch.Tensor
    bias: torch.Tensor


def empty_tables(slots: int, vocab_size: int, device: torch.device | str) -> Tables:
    """Tables of zeros: 8 bytes per token of the vocabulary and slot."""
    shape = (slots, vocab_size)
    return Tables(*(place(torch.zeros(shape, dtype=dtype).to(device)) for dtype in (torch.int32, torch.float32)))


def load(table: torch.Tensor, slot: int, row: np.ndarray, mode: str) -> None:
    """Writes a row of a table, in place, as a graph of its own.

    Args:
        table: one of the tables.
        slot: its row.
        row: [vocabulary], of the table's dtype.
        mode: "direct" or "compile", as of the graphs in pyxla/vllm/graph.py.
    """
    inputs = torch.tensor([slot], dtype=torch.int32), torch.from_numpy(row[None])
    _write(mode)(table, *(place(tensor.to(table.device)) for tensor in inputs))
    if mode == "direct" and table.device.type == "xla":
        import torch_xla

        torch_xla.sync()


def counts_of(prompt: list[int], output: list[int], vocab_size: int) -> np.ndarray:
    """[vocab_size], int32: the row of counts of a request with these tokens."""
    counts = np.bincount(np.asarray(output, np.int64), minlength=vocab_size).astype(np.int32)
    counts[np.asarray(prompt, np.int64)] |= IN_PROMPT
    return counts


def allowed(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sets the logits of tokens that a grammar does not allow to -infinity.

    Args:
        logits: [rows, vocabulary].
        mask: [rows, words], int32; bit i of word w stands for token 32 * w + i. 1: allowed.

    Returns:
        [rows, vocabulary], of the logits' dtype.
    """
    places = torch.arange(32, dtype=torch.int32, device=mask.device)
    expanded = (mask[:, :, None] & torch.bitwise_left_shift(torch.ones_like(places), places)) != 0
    return logits.masked_fill(~expanded.flatten(1)[:, : logits.shape[1]], -torch.inf)


def adjusted(logits: torch.Tensor, rows: Rows, tables: Tables) -> torch.Tensor:
    """Applies biases and penalties.

    Args:
        logits: [rows, vocabulary], float32.
        rows: which of them apply.
        tables: of the requests.

    Returns:
        [rows, vocabulary], float32.
    """
    bias = tables.bias.index_select(0, rows.slot)
    logits = logits + torch.where(rows.biased[:, None] != 0, bias, 0.0)
    counts = tables.counts.index_select(0, rows.slot)
    repetition = torch.where(counts != 0, rows.repetition[:, None], 1.0)
    logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    generated = counts & (IN_PROMPT - 1)
    logits = logits - rows.frequency[:, None] * generated
    return logits - rows.presence[:, None] * (generated > 0)


def count(tokens: torch.Tensor, rows: Rows, tables: Tables) -> None:
    """Counts the new tokens, in place.

    Args:
        tokens: [rows], int32.
        rows: which of them count.
        tables: of the requests.
    """
    if is_traced():
        donate(tables.counts)
    tables.counts.index_put_((rows.slot, tokens), rows.counted, accumulate=True)


@cache
def _write(mode: str) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    def write(table: torch.Tensor, index: torch.Tensor, row: torch.Tensor) -> None:
        if is_traced():
            donate(table)
        table.index_put_((index,), row)

    return in_mode(write, mode)
