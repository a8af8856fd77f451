"""attention_to_qkv: what a decoder layer computes between its attention and the next layer's, for few tokens."""

import torch
from pyxla_kernels.common.rms_norm import inverse_rms

from pyxla import Check, accumulation_dtype, custom_op

check = Check("attention_to_qkv")

#: The rows of one matrix product on the GPU.
MAX_TOKENS = 64
#: width, hidden and inner are multiples of it.
GRANULE = 256


@custom_op(mutates=["residual"])
def attention_to_qkv(
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

    For a step of few tokens, which reads weights and little else: one kernel in the place of three products, two
    fused_add_rms_norm, a silu_and_mul and the product behind them. There is no gradient, as the op works in place.

    Args:
        attention: [tokens, width]; bfloat16 or float16; at most 64 tokens; width, hidden and inner multiples of 256.
        residual: [tokens, hidden], as all others in attention's dtype; updated in place.
        o_proj: [hidden, width].
        post_attention_norm: [hidden].
        gate_up_proj: [2 * inner, hidden], the gate's rows and then those of what it multiplies.
        down_proj: [hidden, inner].
        input_norm: [hidden], the next layer's.
        qkv_proj: [columns, hidden], the next layer's; columns a positive multiple of 8. None: behind the last layer.
        eps: added to the mean of the squares; finite and not negative.

    Returns:
        [tokens, columns], without qkv_proj [tokens, hidden]. All is formed in float32; on XLA:CUDA the residual stream,
        what it is times a norm's weight, and the gated product are rounded to attention's dtype between: in float16
        none of them may exceed 65504.

    Raises:
        ArgumentError: another dtype (CPU and CUDA tensors may be float64), rank or shape; more than 64 tokens; a size
            that is not such a multiple; eps.
        RuntimeError: on XLA:CUDA, where the GPU's compute capability is not 9.0 (H100, H200).

    Source: the decoder of Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023,
    arXiv:2302.13971.
    """
    wide = accumulation_dtype(attention.dtype)

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x.to(wide) @ weight.to(wide).t()

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * inverse_rms(x, eps) * weight.to(wide)

    total = residual.to(wide) + product(attention, o_proj)
    gate, up = product(norm(total, post_attention_norm), gate_up_proj).chunk(2, dim=-1)
    total = total + product(torch.nn.functional.silu(gate) * up, down_proj)
    residual.copy_(total)
    out = norm(total, input_norm)
    return (out if qkv_proj is None else product(out, qkv_proj)).to(attention.dtype)


@attention_to_qkv.register_fake
def _(
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
    check.dtype("attention", attention, (torch.bfloat16, torch.float16), reference=(torch.float64,))
    ranked = {"attention": attention, "residual": residual, "down_proj": down_proj, "qkv_proj": qkv_proj}
    for name, tensor in ranked.items():
        if tensor is not None:
            check.rank(name, tensor, 2)
    (tokens, width), hidden = attention.shape, residual.shape[1]
    inner, columns = down_proj.shape[1], hidden if qkv_proj is None else qkv_proj.shape[0]
    hint = "for more tokens use the ops that it stands for"
    check.that(tokens <= MAX_TOKENS, "attention", f"at most {MAX_TOKENS} tokens", tokens, hint)
    for name, what, size in (("attention", "width", width), ("residual", "hidden size", hidden)):
        _check_granule(name, what, size)
    _check_granule("down_proj", "inner size", inner)
    check.that(columns > 0 and columns % 8 == 0, "qkv_proj", "rows in a positive multiple of 8", columns)
    for name, tensor, shape in (
        ("residual", residual, (tokens, hidden)),
        ("o_proj", o_proj, (hidden, width)),
        ("post_attention_norm", post_attention_norm, (hidden,)),
        ("gate_up_proj", gate_up_proj, (2 * inner, hidden)),
        ("down_proj", down_proj, (hidden, inner)),
        ("input_norm", input_norm, (hidden,)),
        ("qkv_proj", qkv_proj, (columns, hidden)),
    ):
        if tensor is not None:
            check.dtype(name, tensor, (attention.dtype,))
            check.shape(name, tensor, shape)
    check.finite("eps", eps)
    check.that(eps >= 0, "eps", "a number that is not negative", eps)
    return attention.new_empty((tokens, columns))


def _check_granule(name: str, what: str, size: int) -> None:
    article = "an" if what[0] in "aeiou" else "a"
    expected = f"{article} {what} that is a multiple of {GRANULE}"
    check.that(size > 0 and size % GRANULE == 0, name, expected, size)


@attention_to_qkv.register_workspace
def workspace_bytes(
    attention: torch.Tensor,
    residual: torch.Tensor,
    o_proj: torch.Tensor,
    post_attention_norm: torch.Tensor,
    gate_up_proj: torch.Tensor,
    down_proj: torch.Tensor,
    *others,
) -> int:
    """What goes into a product, and sums of squares, as WorkspaceBytes in attention_to_qkv.cu."""
    tokens, hidden, inner = *residual.shape, down_proj.shape[1]
    return sum(-(-size // 256) * 256 for size in (2 * tokens * hidden, 2 * tokens * inner, 4 * tokens * (hidden // 32)))
