"""fused_all_reduce_rms_norm: adds the parts of several devices to the residual stream, and normalises the sum."""

import torch
from pyxla_kernels._rms_norm.reference import checked, normalised

from pyxla import Check, accumulation_dtype, custom_op

check = Check("fused_all_reduce_rms_norm")
# Of one sum.
MAX_PARTS = 8


@custom_op(mutates=["residual"])
def fused_all_reduce_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    groups: list[int],
    eps: float = 1e-6,
    channel: int = 0,
    timeout: float = 60.0,
) -> torch.Tensor:
    """residual += sum of x over its parts; then residual / sqrt(mean(residual^2) + eps) * weight.

    The parts of a product that is parallel by rows, one on each device of a mesh:
    `pyxla.shard(op, "parts", mesh, "model")`, with x split along its first dimension. Each device gets the whole
    result, the same bits as the others. On one device x has all parts; with one part the op is fused_add_rms_norm.

    All devices are of one process. Calls on one channel follow one another on each device, as those that update one
    residual do. A device that waits for another longer than `timeout` ends in an error: of the handler on the CPU, of
    the kernel on a GPU, where the process must be started again.

    Args:
        x: [parts, ..., hidden], 1 to 8 parts; float32, bfloat16 or float16.
        residual: [..., hidden], x's dtype, the same on all devices; updated in place.
        weight: [hidden], x's dtype or float32; None leaves it out.
        groups: for each device of the process, by its ordinal, the number of its group; those of one group add up.
            Empty: x has all parts.
        eps: added to the mean of the squares; finite and not negative.
        channel: another one for calls of a group that may run at the same time.
        timeout: seconds; finite and not negative.

    Returns:
        As residual. The parts are added in the order of the devices, then the residual, in float32 or better; the
        sum is normalised before it is rounded.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank, shape, number of parts, group, eps or
            timeout other than the above.

    Source: as fused_add_rms_norm; the sum over peers' memory in one step is the custom all-reduce of TensorRT-LLM and
    vLLM.
    """
    wide = accumulation_dtype(x.dtype)
    total = x.to(wide).sum(dim=0) + residual.to(wide)
    residual.copy_(total)
    return normalised(total, weight, eps).to(x.dtype)


@fused_all_reduce_rms_norm.register_fake
def _(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    groups: list[int],
    eps: float = 1e-6,
    channel: int = 0,
    timeout: float = 60.0,
) -> torch.Tensor:
    check.dtype("x", x, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.that(x.dim() >= 2, "x", "rank 2 or more", f"shape {tuple(x.shape)}")
    check.dtype("residual", residual, (x.dtype,))
    check.shape("residual", residual, x.shape[1:], hint="one for all parts")
    out = checked(check, residual, weight, eps)
    check.finite("timeout", timeout)
    check.that(timeout >= 0, "timeout", "a number that is not negative", timeout)
    largest = max((groups.count(group) for group in groups), default=0)
    check.that(largest <= MAX_PARTS, "groups", f"at most {MAX_PARTS} devices in a group", largest)
    if largest > 1:
        check.that(x.shape[0] == 1, "x", "1 part on each device", x.shape[0])
    check.that(1 <= x.shape[0] <= MAX_PARTS, "x", f"1 to {MAX_PARTS} parts", x.shape[0])
    return out


fused_all_reduce_rms_norm.register_sharding("parts", operands={"x": 0}, results=[None])
