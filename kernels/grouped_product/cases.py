"""Inputs of grouped_product, for tests and benchmarks; each with its reason."""

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# tokens, rows of x for a token, top_k, num_experts, n, k
SHAPES = {
    "1x1x1": ((1, 1, 1, 1, 1, 1), "one of everything"),
    "3x1x2": ((3, 1, 2, 4, 24, 40), "a first product: an expert without rows, sizes of no whole tile"),
    "3x2x2": ((3, 2, 2, 4, 40, 24), "a second product: each expert of a token has a row of its own"),
    "5x1x3": ((5, 1, 3, 6, 10, 7), "k and n that no vector of 16 bytes divides"),
    "37x1x2": ((37, 1, 2, 2, 72, 520), "experts with more rows than a tile of the host; two blocks of k"),
    "0x1x2": ((0, 1, 2, 4, 8, 8), "no tokens"),
    "2x1x0": ((2, 1, 0, 4, 8, 8), "no experts of a token"),
    "2x1x2-n0": ((2, 1, 2, 4, 0, 8), "no columns"),
    "2x1x2-k0": ((2, 1, 2, 4, 8, 0), "sums of nothing: the bias"),
    "2x1x2-e0": ((2, 1, 2, 0, 8, 8), "no expert: zeros"),
}
# What only the GPU's kernels treat differently.
CUDA_SHAPES = {
    "16x1x4": ((16, 1, 4, 32, 136, 264), "few tokens: a CTA for each row, of which the first of an expert works"),
    "16x1x8": ((16, 1, 8, 16, 64, 512), "few tokens: a CTA for each expert"),
    "40x8x8": ((40, 8, 8, 16, 200, 448), "more tokens: tiles of 64 rows, an expert has several blocks of eight"),
    "200x1x1": ((200, 1, 1, 4, 72, 72), "more rows of an expert than such a tile has"),
    "600x1x4": ((600, 1, 4, 6, 264, 136), "many rows: sorted, several tiles of 128 rows for an expert"),
    "300x2x2": ((300, 2, 2, 3, 136, 1024), "the same with rows of their own"),
}


def arguments(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, bias: bool = True) -> dict:
    """Rows and experts of very different magnitude, so that a leak between them shows; some rows without expert."""
    tokens, x_rows, top_k, num_experts, n, k = shape

    def random(*dims: int) -> torch.Tensor:
        return torch.randn(dims, generator=generator)

    experts = torch.randint(max(num_experts, 1), (tokens, top_k), generator=generator, dtype=torch.int32)
    if num_experts > 3:
        experts[experts == 1] = 2  # expert 1 has no rows
    flat = experts.view(-1)
    flat[4::7], flat[5::11], flat[6::13] = -1, num_experts, -(2**31)
    of_experts = torch.logspace(-0.5, 0.5, max(num_experts, 1))[:num_experts, None]
    made = {
        "x": random(tokens, x_rows, k) * torch.logspace(-1, 1, max(tokens, 1))[:tokens, None, None],
        "weight": random(num_experts, n, k) * of_experts[:, None] * max(k, 1) ** -0.5,
        "bias": random(num_experts, n) * of_experts if bias else None,
    }
    made = {name: tensor if tensor is None else tensor.to(dtype) for name, tensor in made.items()}
    return {"x": made["x"], "weight": made["weight"], "experts": experts, "bias": made["bias"]}


def torch_grouped_product(
    x: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """By torch's own ops in the same dtype: all rows times every weight, of which each keeps its expert's."""
    all_experts = torch.matmul(x.flatten(0, 1), weight.transpose(1, 2)).unflatten(1, x.shape[:2])
    exists = (experts >= 0) & (experts < weight.shape[0])
    chosen = experts.where(exists, 0).long()
    tokens = torch.arange(x.shape[0], device=x.device)[:, None]
    rows = torch.arange(experts.shape[1], device=x.device) if x.shape[1] > 1 else 0
    out = all_experts[chosen, tokens, rows]
    return torch.where(exists[..., None], out if bias is None else out + bias[chosen], 0)


def torch_product_of_each_expert(
    x: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The same for many rows: a product for each expert, of the rows that go to it."""
    rows, out = x.expand(*experts.shape, -1), x.new_zeros((*experts.shape, weight.shape[1]))
    for expert in experts.unique().tolist():
        chosen = experts == expert
        out[chosen] = torch.nn.functional.linear(rows[chosen], weight[expert], None if bias is None else bias[expert])
    return out


def _case(name: str, dtype: torch.dtype, shape: tuple[int, ...], why: str, **options) -> Case:
    return Case(
        name,
        why,
        lambda g: arguments(g, shape, dtype),
        # torch's own indexing wants an expert.
        peer=torch_grouped_product if shape[3] else None,
        # Tensor cores truncate a sum after each 16 products.
        cuda_roundings=128,
        **options,
    )


CASES = (
    [
        _case(f"{name}-{shape_name}", dtype, shape, why)
        for name, dtype in DTYPES.items()
        for shape_name, (shape, why) in SHAPES.items()
    ]
    + [
        _case(f"{name}-{shape_name}", dtype, shape, why, cuda_size=True)
        for name, dtype in DTYPES.items()
        for shape_name, (shape, why) in CUDA_SHAPES.items()
        # float32 has one kernel.
        if name != "f32"
    ]
    + [
        Case(
            f"{name}-no-bias",
            "an absent operand",
            lambda g, dtype=dtype: arguments(g, SHAPES["3x2x2"][0], dtype, bias=False),
            peer=torch_grouped_product,
        )
        for name, dtype in DTYPES.items()
    ]
    + [
        Case(
            "bf16-padding",
            "no row has an expert: zeros, although the weights are NaN",
            lambda g: {
                "x": torch.ones(3, 1, 8, dtype=torch.bfloat16),
                "weight": torch.full((2, 8, 8), torch.nan, dtype=torch.bfloat16),
                "experts": torch.full((3, 2), -1, dtype=torch.int32),
                "bias": None,
            },
        ),
    ]
)


def _bad(name: str, message: str, **changes) -> BadInput:
    good = arguments(torch.Generator().manual_seed(0), (3, 1, 2, 4, 8, 16), torch.float32)
    return BadInput(name, lambda g: good | changes, f"grouped_product: {message}")


BAD_INPUTS = [
    _bad(
        "dtype",
        "x: expected dtype float32 or bfloat16 or float16, got int32",
        x=torch.ones(3, 1, 16, dtype=torch.int32),
    ),
    _bad("rank", "x: expected rank 3, got shape (3, 16)", x=torch.ones(3, 16)),
    _bad(
        "weight-dtype",
        "weight: expected dtype float32, got bfloat16",
        weight=torch.ones(4, 8, 16, dtype=torch.bfloat16),
    ),
    _bad("weight-rank", "weight: expected rank 3, got shape (8, 16)", weight=torch.ones(8, 16)),
    _bad("experts-dtype", "experts: expected dtype int32, got int64", experts=torch.zeros(3, 2, dtype=torch.int64)),
    _bad("experts-rank", "experts: expected rank 2, got shape (3,)", experts=torch.zeros(3, dtype=torch.int32)),
    _bad("k", "weight: expected shape (4, 8, 16), got (4, 8, 24)", weight=torch.ones(4, 8, 24)),
    _bad("tokens", "experts: expected shape (3, 2), got (4, 2)", experts=torch.zeros(4, 2, dtype=torch.int32)),
    _bad("rows", "x: expected 1 row or 2 rows for each token, got 3", x=torch.ones(3, 3, 16)),
    _bad("bias-dtype", "bias: expected dtype float32, got float16", bias=torch.ones(4, 8, dtype=torch.float16)),
    _bad("bias", "bias: expected shape (4, 8), got (8,)", bias=torch.ones(8)),
]


def _bench_arguments(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> dict:
    """As a router chooses: top_k different experts for each token."""
    tokens, x_rows, top_k, num_experts, n, k = shape
    chosen = torch.rand(tokens, num_experts, generator=generator).topk(top_k, dim=1).indices
    return {
        "x": torch.randn(tokens, x_rows, k, generator=generator).to(dtype),
        "weight": torch.randn(num_experts, n, k, generator=generator, dtype=dtype) * k**-0.5,
        "experts": chosen.int(),
        "bias": None,
    }


def _bench_bytes(a: dict) -> int:
    """x and the weights of the chosen experts read, the result written."""
    read = a["weight"][0].nbytes * a["experts"].unique().numel()
    return read + nbytes(a["x"]) + a["experts"].numel() * a["weight"].shape[1] * a["x"].element_size()


def _bench(name: str, shape: tuple[int, ...], dtype: torch.dtype, why: str, *devices: str) -> Bench:
    has_many_rows = shape[0] > 1024
    return Bench(
        name,
        why,
        lambda g: _bench_arguments(g, shape, dtype),
        bytes=_bench_bytes,
        operations=lambda a: 2 * a["experts"].numel() * a["weight"][0].numel(),
        roundings=128,
        peer=torch_product_of_each_expert if has_many_rows else torch_grouped_product,
        reads_lengths=has_many_rows,
        devices=devices,
    )


BENCHES = [
    _bench("bf16-64-up", (64, 1, 8, 128, 1536, 2048), torch.bfloat16, "a decode step of Qwen3 30B A3B", "cuda"),
    _bench("bf16-64-down", (64, 8, 8, 128, 2048, 768), torch.bfloat16, "its second product: short sums", "cuda"),
    _bench("bf16-8-down", (8, 8, 8, 128, 2048, 768), torch.bfloat16, "few sequences: half of the experts", "cuda"),
    _bench("bf16-1-up", (1, 1, 8, 128, 1536, 2048), torch.bfloat16, "one sequence: 8 of 128 experts", "cuda"),
    _bench("bf16-32-mixtral", (32, 2, 2, 8, 4096, 14336), torch.bfloat16, "Mixtral 8x7B: few, large experts", "cuda"),
    _bench("bf16-256-up", (256, 1, 8, 128, 1536, 2048), torch.bfloat16, "many sequences: 16 rows an expert", "cuda"),
    _bench("bf16-256-down", (256, 8, 8, 128, 2048, 768), torch.bfloat16, "their second product", "cuda"),
    _bench("bf16-2048-up", (2048, 1, 8, 128, 1536, 2048), torch.bfloat16, "a prefill of 2048 tokens", "cuda"),
    _bench("f32-8", (8, 1, 2, 8, 256, 512), torch.float32, "a decode step of a small model", "cpu"),
    _bench("bf16-64", (64, 1, 2, 8, 512, 512), torch.bfloat16, "several rows for each expert", "cpu"),
]
