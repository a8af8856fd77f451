"""Shared by the cases of both ops: arguments, the same by torch's own ops, and the roundings that are allowed."""

import torch

WEIGHTS = ("o_proj", "post_attention_norm", "gate_up_proj", "down_proj", "input_norm", "qkv_proj")

# Three products take values that were rounded to 16 bits: an element's error is up to four roundings of its dtype,
# relative to the largest element of its row. The root mean square error is compared with that of torch's own ops, which
# round as often.
ROUNDINGS = {torch.bfloat16: 2**17, torch.float16: 2**14}


def arguments(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> dict:
    """Tokens of very different magnitude, so that a leak from one row into another shows; weights that keep it."""
    tokens, width, hidden, inner, columns = shape

    def random(*dims: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(dims, generator=generator) * scale

    made = activations(generator, tokens, width, hidden, dtype) | {
        "o_proj": random(hidden, width, scale=width**-0.5),
        "post_attention_norm": 1 + random(hidden, scale=0.5),
        "gate_up_proj": random(2 * inner, hidden, scale=hidden**-0.5),
        "down_proj": random(hidden, inner, scale=inner**-0.5),
        "input_norm": 1 + random(hidden, scale=0.5),
        "qkv_proj": random(columns, hidden, scale=hidden**-0.5),
    }
    return {name: tensor.to(dtype) for name, tensor in made.items()} | {"eps": 1e-6}


def activations(
    generator: torch.Generator, tokens: int, width: int, hidden: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Attention and residual, each token's of another magnitude."""
    size = torch.logspace(-1, 1, max(tokens, 1))[:tokens, None]
    sizes = {"attention": width, "residual": hidden}
    return {n: (torch.randn(tokens, wide, generator=generator) * size).to(dtype) for n, wide in sizes.items()}


def torch_fused_decoder_layer(
    attention: torch.Tensor,
    residual: torch.Tensor,
    o_proj: torch.Tensor,
    post_attention_norm: torch.Tensor,
    gate_up_proj: torch.Tensor,
    down_proj: torch.Tensor,
    input_norm: torch.Tensor,
    qkv_proj: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """The same by torch's own ops in the same dtype."""
    F = torch.nn.functional
    hidden = residual.shape[-1:]
    residual.add_(F.linear(attention, o_proj))
    gate, up = F.linear(F.rms_norm(residual, hidden, post_attention_norm, eps), gate_up_proj).chunk(2, dim=-1)
    residual.add_(F.linear(F.silu(gate) * up, down_proj))
    out = F.rms_norm(residual, hidden, input_norm, eps)
    return out if qkv_proj is None else F.linear(out, qkv_proj)


def changed(good: dict, **changes) -> dict:
    """The arguments with some of them replaced: by ones of the given shape, or by the given value."""
    dtype = good["attention"].dtype
    return good | {
        name: torch.ones(value, dtype=dtype) if isinstance(value, tuple) else value for name, value in changes.items()
    }
