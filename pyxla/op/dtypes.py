"""The dtypes that XLA and torch share, and their names in each format."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Dtype(NamedTuple):
    """A dtype of XLA.

    Attributes:
        torch: the dtype.
        mlir: its name in StableHLO.
        hlo: its name in HLO text.
        ffi: its number in XLA's FFI, XLA_FFI_DataType.
    """

    torch: torch.dtype
    mlir: str
    hlo: str
    ffi: int


DTYPES = {
    row.torch: row
    for row in (
        Dtype(torch.bool, "i1", "pred", 1),
        Dtype(torch.int8, "i8", "s8", 2),
        Dtype(torch.int16, "i16", "s16", 3),
        Dtype(torch.int32, "i32", "s32", 4),
        Dtype(torch.int64, "i64", "s64", 5),
        Dtype(torch.uint8, "ui8", "u8", 6),
        Dtype(torch.float16, "f16", "f16", 10),
        Dtype(torch.bfloat16, "bf16", "bf16", 16),
        Dtype(torch.float32, "f32", "f32", 11),
        Dtype(torch.float64, "f64", "f64", 12),
        Dtype(torch.float8_e4m3fn, "f8E4M3FN", "f8e4m3fn", 20),
        Dtype(torch.float8_e5m2, "f8E5M2", "f8e5m2", 19),
    )
}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32: the name that the C++ handlers also print."""
    return str(dtype).removeprefix("torch.")


BY_NAME = {dtype_name(dtype): row for dtype, row in DTYPES.items()}
