"""How the token of each row of a step is drawn: one record of numbers per row, on the host and on the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from pyxla.vllm.sampling.stablehlo import op

RECORD = np.dtype(
    [
        ("slot", np.int32),
        ("seed_low", np.int32),
        ("seed_high", np.int32),
        ("position", np.int32),
        ("top_k", np.int32),
        ("biased", np.int32),
        ("counted", np.int32),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("repetition", np.float32),
    ]
)
COLUMNS = len(RECORD.names)
_INTEGERS = RECORD.names.index("temperature")


def _module(packed: tuple[int, int]) -> str:
    integers, floats = (f"tensor<{packed[0]}x{packed[1]}x{dtype}>" for dtype in ("i32", "f32"))
    return f"""module @as_floats {{
  func.func @main(%packed: {integers}) -> {floats} {{
    %floats = stablehlo.bitcast_convert %packed : ({integers}) -> {floats}
    return %floats : {floats}
  }}
}}
"""


# `Tensor.view(dtype)` of torch_xla goes by way of the host.
_as_floats = op(
    "as_floats(Tensor packed) -> Tensor", lambda packed: torch.empty_like(packed, dtype=torch.float32), _module
)


class Rows(NamedTuple):
    """The records of a step on the device; each field has the shape [rows].

    Attributes:
        slot: int32; the row of the request in the tables.
        seed_low, seed_high: int32; the 64 bits of the request's seed.
        position: int32; the number of tokens that the request has generated.
        top_k: int32; the number of tokens that a draw is among, at most the vocabulary.
        biased: int32; 1 if the table of biases applies.
        counted: int32; 1 if the table of counts takes the new token.
        temperature: float32; 0: the likeliest token.
        top_p, min_p, presence, frequency, repetition: float32; as in vLLM's SamplingParams.
    """

    slot: torch.Tensor
    seed_low: torch.Tensor
    seed_high: torch.Tensor
    position: torch.Tensor
    top_k: torch.Tensor
    biased: torch.Tensor
    counted: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    repetition: torch.Tensor


def neutral(count: int, vocab_size: int) -> np.ndarray:
    """[count], RECORD: rows that take the likeliest token and change nothing."""
    rows = np.zeros(count, RECORD)
    rows["top_k"], rows["top_p"], rows["repetition"] = vocab_size, 1.0, 1.0
    return rows


def as_integers(rows: np.ndarray) -> torch.Tensor:
    """[rows, COLUMNS], int32: the records as they go to the device, the bits of floats as integers."""
    return torch.from_numpy(rows.view(np.int32).reshape(len(rows), COLUMNS))


def as_rows(packed: torch.Tensor) -> Rows:
    """The records that `as_integers` made. Call it inside the compiled function."""
    return Rows(*packed.unbind(1)[:_INTEGERS], *_as_floats(packed).unbind(1)[_INTEGERS:])
