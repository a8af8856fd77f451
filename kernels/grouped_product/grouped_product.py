"""grouped_product: the matrix product of each row with the weight of the expert that the row goes to."""

import torch

from pyxla import Check, accumulation_dtype, custom_op

check = Check("grouped_product")


@custom_op
def grouped_product(
    x: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x . weight[expert]^T + bias[expert] for each token and each of its experts.

    The products of a mixture of experts. In the first one all experts of a token multiply the same row, in the second
    one each has its own. The weight of an expert that no row goes to is not read.

    Args:
        x: [tokens, 1, k], a row for all experts of a token, or [tokens, top_k, k]; float32, bfloat16 or float16.
        weight: [num_experts, n, k], x's dtype.
        experts: [tokens, top_k], int32; the expert of each row. Any index outside [0, num_experts), such as -1 for
            padding, gives a row of zeros.
        bias: [num_experts, n], x's dtype; None: zeros.

    Returns:
        [tokens, top_k, n], x's dtype. Summed in float32 and rounded once. On XLA a row depends bit for bit only on its
        own elements of x and its expert.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank or shape other than the above.

    Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017,
    arXiv:1701.06538; as one call: Gale et al., "MegaBlocks", 2022, arXiv:2211.15841.
    """
    wide = accumulation_dtype(x.dtype)
    rows = x.expand(*experts.shape, x.shape[2])
    out = torch.zeros((*experts.shape, weight.shape[1]), dtype=wide, device=x.device)
    for expert in experts.unique().tolist():
        if 0 <= expert < len(weight):
            chosen = experts == expert
            out[chosen] = rows[chosen].to(wide) @ weight[expert].to(wide).t()
            if bias is not None:
                out[chosen] += bias[expert].to(wide)
    return out.to(x.dtype)


@grouped_product.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    check.dtype("x", x, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.rank("x", x, 3)
    check.dtype("weight", weight, (x.dtype,))
    check.rank("weight", weight, 3)
    check.dtype("experts", experts, (torch.int32,))
    check.rank("experts", experts, 2)
    (tokens, rows, k), (num_experts, n, _), top_k = x.shape, weight.shape, experts.shape[1]
    check.shape("weight", weight, (num_experts, n, k))
    check.shape("experts", experts, (tokens, top_k))
    check.that(rows in (1, top_k), "x", f"1 row or {top_k} rows for each token", rows)
    if bias is not None:
        check.dtype("bias", bias, (x.dtype,))
        check.shape("bias", bias, (num_experts, n))
    return x.new_empty((tokens, top_k, n))


@grouped_product.register_workspace
def workspace_bytes(x: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor, *others) -> int:
    """Bytes of the rows in the order of their experts and of the tiles of rows, like WorkspaceBytes in the .cu file."""
    rows, tile_rows = experts.numel(), 128
    return 16 * (2 + rows // tile_rows + weight.shape[0]) + 4 * rows


grouped_product.register_sharding("columns", operands={"weight": 1, "bias": 1}, results=[2])
