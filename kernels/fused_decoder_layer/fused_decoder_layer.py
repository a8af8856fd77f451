"""fused_decoder_layer and fused_decoder_layer_rotary: a decoder layer after its attention, for few tokens."""

from dataclasses import dataclass

import torch
from pyxla_kernels._kv_cache.reference import check_slots_and_scales, store
from pyxla_kernels._rms_norm.reference import inverse_rms
from pyxla_kernels._rotary.reference import angles, check_angles, rotate

from pyxla import Check, accumulation_dtype, custom_op

#: The rows of one matrix product on the GPU.
MAX_TOKENS = 64
#: width, hidden and inner are multiples of it.
GRANULE = 256
#: d of fused_decoder_layer_rotary is a multiple of it.
HEAD_GRANULE = 32


@custom_op(mutates=["residual"])
def fused_decoder_layer(
    attention: torch.Tensor,
    residual: torch.Tensor,
    o_proj: torch.Tensor,
    post_attention_norm: torch.Tensor,
    gate_up_proj: torch.Tensor,
    down_proj: torch.Tensor,
    input_norm: torch.Tensor,
    qkv_proj: torch.Tensor | None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Attention's output projection, a norm, the gated MLP, the next layer's norm and its queries, keys and values.

    For a step of few tokens, whose time is spent on reading the weights: one kernel replaces four matrix products, two
    fused_add_rms_norm and a silu_and_mul. There is no gradient, because the op works in place.

    Args:
        attention: [tokens, width]; bfloat16 or float16; at most 64 tokens; width, hidden and inner multiples of 256.
        residual: [tokens, hidden], attention's dtype, like all further tensors; updated in place.
        o_proj: [hidden, width].
        post_attention_norm: [hidden].
        gate_up_proj: [2 * inner, hidden], the rows of the gate, then those of its factor.
        down_proj: [hidden, inner].
        input_norm: [hidden], the next layer's.
        qkv_proj: [columns, hidden], the next layer's; columns a positive multiple of 8. None after the last layer.
        eps: added to the mean of the squares; finite and not negative.

    Returns:
        [tokens, columns], or [tokens, hidden] without qkv_proj. Computed in float32. XLA:CUDA rounds the residual
        stream, its product with a norm's weight, and the gated MLP's activations to attention's dtype: where one of
        them exceeds float16's 65504, the token's results are infinite or NaN.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank, shape, size or eps other than the above;
            more than 64 tokens.
        RuntimeError: on XLA:CUDA, if the GPU's compute capability is not 9.0 (H100, H200).

    Source: the decoder of Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023,
    arXiv:2302.13971.
    """
    return _project(_finish(Arguments(**locals())), qkv_proj).to(attention.dtype)


@custom_op(library="fused_decoder_layer", mutates=["residual", "kv_cache"])
def fused_decoder_layer_rotary(
    attention: torch.Tensor,
    residual: torch.Tensor,
    o_proj: torch.Tensor,
    post_attention_norm: torch.Tensor,
    gate_up_proj: torch.Tensor,
    down_proj: torch.Tensor,
    input_norm: torch.Tensor,
    qkv_proj: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    eps: float = 1e-6,
) -> torch.Tensor:
    """fused_decoder_layer, then rotary_and_cache: returns the next layer's queries and stores its keys and values.

    Args:
        attention, residual, o_proj, post_attention_norm, gate_up_proj, down_proj, input_norm, eps: as in
            fused_decoder_layer.
        qkv_proj: [(heads + 2 * kv_heads) * d, hidden], the next layer's: the rows of the queries, at least one head,
            then those of the keys, then those of the values; d a multiple of 32.
        positions: [tokens], int32 or int64; the row of cos_sin_cache for each token, also if it is left out.
        cos_sin_cache: [max_position, d], attention's dtype or float32; in a row the cosines of all
            pairs (j, j + d / 2), then the sines.
        kv_cache: [2, blocks, block_size, kv_heads, d] or [2, blocks, block_size, kv_heads * d], attention's dtype, the
            next layer's; [0] the keys, [1] the values; updated in place.
        slot_mapping: [tokens], int32 or int64; slot `block * block_size + offset`, or -1 for a token that is left out.
            All other slots must differ.

    Returns:
        [tokens, heads, d], the rotated queries. The qkv projection is rotated in float32 and rounded once.

    Raises:
        ArgumentError: as in fused_decoder_layer, and the same errors in the further arguments; on CPU tensors also a
            position or slot out of range.
        RuntimeError: a position or slot out of range on XLA:CPU. XLA:CUDA cannot raise: it writes NaN to the queries
            and keys of a token whose position is out of range, and does not store a token whose slot is out of range.
            On XLA:CUDA, if the GPU's compute capability is not 9.0.

    Source: as fused_decoder_layer and rotary_and_cache.
    """
    x = _finish(RotaryArguments(**locals()))
    check, d = Check("fused_decoder_layer_rotary"), cos_sin_cache.shape[1]
    kv_heads = kv_cache.shape[3:].numel() // d
    qkv = _project(x, qkv_proj).unflatten(1, (-1, d))
    query, key, value = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    cos, sin = angles(check, positions, qkv, cos_sin_cache)
    key, value = (x.to(attention.dtype) for x in (rotate(key, cos, sin, True), value))
    store(check, key, value, kv_cache, slot_mapping, None)
    return rotate(query, cos, sin, True).to(attention.dtype)


@dataclass
class _Products:
    """The arguments with which both ops begin."""

    attention: torch.Tensor
    residual: torch.Tensor
    o_proj: torch.Tensor
    post_attention_norm: torch.Tensor
    gate_up_proj: torch.Tensor
    down_proj: torch.Tensor
    input_norm: torch.Tensor
    qkv_proj: torch.Tensor | None


@dataclass
class Arguments(_Products):
    """The arguments of fused_decoder_layer, with its names and in its order."""

    eps: float = 1e-6


@dataclass
class RotaryArguments(_Products):
    """The arguments of fused_decoder_layer_rotary."""

    positions: torch.Tensor
    cos_sin_cache: torch.Tensor
    kv_cache: torch.Tensor
    slot_mapping: torch.Tensor
    eps: float = 1e-6


def _finish(a: Arguments | RotaryArguments) -> torch.Tensor:
    """Returns the next layer's normalised input in the accumulation dtype; updates residual."""
    wide = accumulation_dtype(a.attention.dtype)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * inverse_rms(x, a.eps) * weight.to(wide)

    total = a.residual.to(wide) + _project(a.attention.to(wide), a.o_proj)
    gate, up = _project(norm(total, a.post_attention_norm), a.gate_up_proj).chunk(2, dim=-1)
    total = total + _project(torch.nn.functional.silu(gate) * up, a.down_proj)
    a.residual.copy_(total)
    return norm(total, a.input_norm)


def _project(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    return x if weight is None else x @ weight.to(x.dtype).t()


@fused_decoder_layer.register_fake
def _(*arguments, **named) -> torch.Tensor:
    a = Arguments(*arguments, **named)
    return a.attention.new_empty(_check_products(Check("fused_decoder_layer"), a))


@fused_decoder_layer_rotary.register_fake
def _(*arguments, **named) -> torch.Tensor:
    check, a = Check("fused_decoder_layer_rotary"), RotaryArguments(*arguments, **named)
    tokens, columns = _check_products(check, a)

    check.rank("cos_sin_cache", a.cos_sin_cache, 2)
    d = a.cos_sin_cache.shape[1]
    is_granular = d > 0 and d % HEAD_GRANULE == 0
    check.that(is_granular, "cos_sin_cache", f"a last dimension that is a multiple of {HEAD_GRANULE}", d)
    check.that(columns % d == 0, "qkv_proj", f"rows in a multiple of cos_sin_cache's {d}", columns)
    check_angles(check, a.attention.new_empty((tokens, columns // d, d)), a.positions, a.cos_sin_cache)

    check.dtype(
        "kv_cache",
        a.kv_cache,
        (a.attention.dtype,),
        hint="for a float8 cache use fused_decoder_layer and rotary_and_cache",
    )
    shape = tuple(a.kv_cache.shape)
    check.that(len(shape) in (4, 5), "kv_cache", "rank 4 or 5", f"shape {shape}")
    check.that(shape[0] == 2, "kv_cache", "a first dimension of 2, keys and values", shape[0])
    fits = shape[-1] == d if len(shape) == 5 else shape[-1] % d == 0
    check.that(fits, "kv_cache", f"heads of cos_sin_cache's size {d}", f"shape {shape}")
    kv_heads = a.kv_cache.shape[3:].numel() // d
    heads = columns // d - 2 * kv_heads
    check.that(heads > 0, "qkv_proj", f"more heads than the {2 * kv_heads} of keys and values", columns // d)
    check_slots_and_scales(check, tokens, kv_heads, a.kv_cache, a.slot_mapping, None)
    return a.attention.new_empty((tokens, heads, d))


def _check_products(check: Check, a: Arguments | RotaryArguments) -> tuple[int, int]:
    """Raises ArgumentError for arguments that do not fit together; returns the shape of the last product."""
    dtype = a.attention.dtype
    check.dtype("attention", a.attention, (torch.bfloat16, torch.float16), reference=(torch.float64,))
    for name in ("attention", "residual", "down_proj", "qkv_proj"):
        if (tensor := getattr(a, name)) is not None:
            check.rank(name, tensor, 2)
    (tokens, width), hidden = a.attention.shape, a.residual.shape[1]
    inner, columns = a.down_proj.shape[1], hidden if a.qkv_proj is None else a.qkv_proj.shape[0]
    hint = "for more tokens use the ops that it replaces"
    check.that(tokens <= MAX_TOKENS, "attention", f"at most {MAX_TOKENS} tokens", tokens, hint)
    for name, what, size in (("attention", "width", width), ("residual", "hidden size", hidden)):
        _check_granule(check, name, what, size)
    _check_granule(check, "down_proj", "inner size", inner)
    check.that(columns > 0 and columns % 8 == 0, "qkv_proj", "rows in a positive multiple of 8", columns)
    shapes = {
        "residual": (tokens, hidden),
        "o_proj": (hidden, width),
        "post_attention_norm": (hidden,),
        "gate_up_proj": (2 * inner, hidden),
        "down_proj": (hidden, inner),
        "input_norm": (hidden,),
        "qkv_proj": (columns, hidden),
    }
    for name, shape in shapes.items():
        if (tensor := getattr(a, name)) is not None:
            check.dtype(name, tensor, (dtype,))
            check.shape(name, tensor, shape)
    check.finite("eps", a.eps)
    check.that(a.eps >= 0, "eps", "a number that is not negative", a.eps)
    return tokens, columns


def _check_granule(check: Check, name: str, what: str, size: int) -> None:
    article = "an" if what[0] in "aeiou" else "a"
    expected = f"{article} {what} that is a multiple of {GRANULE}"
    check.that(size > 0 and size % GRANULE == 0, name, expected, size)


@fused_decoder_layer.register_workspace
@fused_decoder_layer_rotary.register_workspace
def workspace_bytes(
    attention: torch.Tensor,
    residual: torch.Tensor,
    o_proj: torch.Tensor,
    post_attention_norm: torch.Tensor,
    gate_up_proj: torch.Tensor,
    down_proj: torch.Tensor,
    *others,
) -> int:
    """Bytes of the products' inputs and of the sums of squares, like WorkspaceBytes in fused_decoder_layer.cu."""
    tokens, hidden, inner = *residual.shape, down_proj.shape[1]
    return sum(-(-size // 256) * 256 for size in (2 * tokens * hidden, 2 * tokens * inner, 4 * tokens * (hidden // 64)))
