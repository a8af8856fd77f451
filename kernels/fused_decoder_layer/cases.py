"""Inputs of fused_decoder_layer and fused_decoder_layer_rotary, for tests and benchmarks; each with its reason."""

import torch
from pyxla_kernels.fused_decoder_layer.fuzz import (  # noqa: F401 - devtool fuzz looks for them here
    FUZZ_KEEPS,
    fused_decoder_layer_rotary_fuzz,
    fuzz,
)
from pyxla_kernels.fused_decoder_layer.inputs import ROUNDINGS, WEIGHTS, arguments, changed, torch_fused_decoder_layer
from pyxla_kernels.fused_decoder_layer.rotary_cases import (  # noqa: F401 - tools look for them here
    FUSED_DECODER_LAYER_ROTARY_BAD_INPUTS,
    FUSED_DECODER_LAYER_ROTARY_CASES,
)

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

# tokens, width, hidden, inner, columns
SHAPES = {
    "1x256": ((1, 256, 256, 256, 8), "one token; the smallest of each size"),
    "17x512": ((17, 512, 256, 768, 264), "rows of the product that no token fills; a tile of columns that is not full"),
    "64x1024": ((64, 768, 1024, 512, 1536), "as many tokens as a product has rows; several tiles of each weight"),
    "3x4352": ((3, 256, 4352, 256, 6400), "more tiles than pairs of CTAs, of 64 and of 96 columns: a pair has two"),
    "5x15104": ((5, 256, 256, 15104, 96), "more gated tiles than CTAs"),
    "0x256": ((0, 256, 256, 256, 8), "no tokens"),
}

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}

CASES = (
    [
        Case(
            f"{name}-{shape_name}",
            why,
            lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype),
            peer=torch_fused_decoder_layer,
            roundings=ROUNDINGS[dtype],
        )
        for name, dtype in DTYPES.items()
        for shape_name, (shape, why) in SHAPES.items()
        # Long shapes run the same code in both dtypes.
        if name == "bf16" or shape_name in ("1x256", "17x512", "64x1024")
    ]
    + [
        Case(
            f"{name}-no-qkv",
            "after the last layer: an absent operand, and as many columns as the residual has",
            lambda g, dtype=dtype: arguments(g, SHAPES["64x1024"][0], dtype) | {"qkv_proj": None},
            peer=torch_fused_decoder_layer,
            roundings=ROUNDINGS[dtype],
        )
        for name, dtype in DTYPES.items()
    ]
    + [
        Case(
            "bf16-eps",
            "an eps as large as the mean of the squares: it must not get lost",
            lambda g: arguments(g, SHAPES["17x512"][0], torch.bfloat16) | {"eps": 1.0},
            peer=torch_fused_decoder_layer,
            roundings=ROUNDINGS[torch.bfloat16],
        ),
        Case(
            "bf16-zeros",
            "a residual stream of zeros: eps alone keeps the result finite",
            lambda g: (
                arguments(g, SHAPES["1x256"][0], torch.bfloat16)
                | {name: torch.zeros(1, 256, dtype=torch.bfloat16) for name in ("attention", "residual")}
            ),
        ),
    ]
)


def _bad(name: str, message: str, dtype: torch.dtype = torch.bfloat16, **changes) -> BadInput:
    return BadInput(
        name,
        lambda g: changed(arguments(g, (2, 256, 256, 512, 16), dtype), **changes),
        f"fused_decoder_layer: {message}",
    )


BAD_INPUTS = [
    _bad("dtype", "attention: expected dtype bfloat16 or float16, got float32", dtype=torch.float32),
    _bad(
        "dtypes",
        "down_proj: expected dtype bfloat16, got float16",
        down_proj=torch.ones(256, 512, dtype=torch.float16),
    ),
    _bad("rank", "residual: expected rank 2, got shape (256,)", residual=(256,)),
    _bad("tokens", "attention: expected at most 64 tokens, got 65", attention=(65, 256), residual=(65, 256)),
    _bad("width", "attention: expected a width that is a multiple of 256, got 128", attention=(2, 128)),
    _bad("hidden", "residual: expected a hidden size that is a multiple of 256, got 320", residual=(2, 320)),
    _bad("inner", "down_proj: expected an inner size that is a multiple of 256, got 0", down_proj=(256, 0)),
    _bad("columns", "qkv_proj: expected rows in a positive multiple of 8, got 12", qkv_proj=(12, 256)),
    _bad("residual", "residual: expected shape (2, 256), got (3, 256)", residual=(3, 256)),
    _bad("o-proj", "o_proj: expected shape (256, 256), got (256, 512)", o_proj=(256, 512)),
    _bad("gate-up", "gate_up_proj: expected shape (1024, 256), got (512, 256)", gate_up_proj=(512, 256)),
    _bad("norm", "input_norm: expected shape (256,), got (1, 256)", input_norm=(1, 256)),
    _bad("eps", "eps: expected a number that is not negative, got -1.0", eps=-1.0),
]


def _bench(name: str, shape: tuple[int, ...], why: str, *devices: str) -> Bench:
    return Bench(
        name,
        why,
        lambda g: arguments(g, shape, torch.bfloat16),
        # The weights once, attention and residual read, residual and the result written.
        bytes=lambda a: (
            sum(nbytes(a[name]) for name in WEIGHTS)
            + nbytes(a["attention"])
            + 2 * nbytes(a["residual"])
            + 2 * a["attention"].shape[0] * a["qkv_proj"].shape[0]
        ),
        roundings=ROUNDINGS[torch.bfloat16],
        operations=lambda a: 2 * a["attention"].shape[0] * sum(a[name].numel() for name in WEIGHTS),
        peer=torch_fused_decoder_layer,
        devices=devices,
    )


BENCHES = [
    _bench("bf16-64x4096", (64, 4096, 4096, 14336, 6144), "a decode step of 64 sequences, Llama 3 8B's shape", "cuda"),
    _bench("bf16-16x4096", (16, 4096, 4096, 14336, 6144), "the same with 16, the smallest step of pyxla.vllm", "cuda"),
    _bench("bf16-1x4096", (1, 4096, 4096, 14336, 6144), "the same with one sequence: latency", "cuda"),
    _bench("bf16-8x512", (8, 512, 512, 1536, 768), "a small decoder", "cpu"),
]
