"""Paged attention as a layer and as a function, with the names that vLLM's XLA backends use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from pyxla.nn.mode import attention_mode, in_mode
from pyxla.nn.on_mesh import op_on
from pyxla.op.arguments import Check

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

check = Check("XlaGpuAttention")


def xla_gpu_paged_attention(
    *,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    kv_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of the new tokens of all sequences over a paged cache that already holds their keys and values.

    Args:
        query: [tokens, heads, d], the new tokens of all sequences one after the other; float32, bfloat16 or float16.
        kv_cache: [2, blocks, block_size, kv_heads, d] or [2, blocks, block_size, kv_heads * d], query's dtype or
            float8_e4m3fn; [0] the keys, [1] the values.
        context_lens: [seqs], int32; tokens in the cache for each sequence, the new ones included.
        block_tables: [seqs, max_blocks], int32; position j of a sequence is in block `table[j // block_size]`.
        query_start_loc: [seqs + 1], int32; the new tokens of sequence s are rows [loc[s], loc[s + 1]).
        num_seqs: [1], int32; sequences and rows past it are padding.
        scale: factor of the logits.
        sliding_window: a token sees itself and the `sliding_window - 1` tokens before it; None: all.
        soft_cap: logits become `soft_cap * tanh(logits / soft_cap)`; None: as they are.
        kv_scales: [2, kv_heads], float32, only with a float8 cache: a key is the stored number times
            `kv_scales[0, kv_head]`, a value the stored number times `kv_scales[1, kv_head]`; None: ones.

    Returns:
        A tensor of query's shape and dtype; zero in padding rows.

    Raises:
        ArgumentError: as `torch.ops.xla_gpu.paged_attention`.
        RuntimeError: on XLA:CPU, when the graph runs, for a length, row or block id out of range.
    """
    return torch.ops.xla_gpu.paged_attention(
        query,
        kv_cache,
        context_lens,
        block_tables,
        query_start_loc,
        num_seqs,
        scale,
        sliding_window,
        soft_cap,
        kv_scales=kv_scales,
    )


class AttentionMetadata(NamedTuple):
    """The data that all layers of a step share, as XLA tensors; other lengths cause no compilation.

    Attributes:
        slot_mapping: [tokens], int32 or int64; where the keys and values of the new tokens go, -1 for padding.
        context_lens, block_tables, query_start_loc, num_seqs: as in `xla_gpu_paged_attention`.
    """

    slot_mapping: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    query_start_loc: torch.Tensor
    num_seqs: torch.Tensor


class XlaGpuAttention(torch.nn.Module):
    """Attention of one layer: writes the new keys and values into the cache, in place, and attends over it.

    Pass no keys and values that the cache already holds: those of a layer that shares another layer's cache, or those
    that `torch.ops.xla_gpu.rotary_and_cache` wrote.

    In mode "direct" a call traces two custom calls, or only the second of them, which run at `torch_xla.sync()`. In
    mode "compile" the call is compiled by `torch.compile(backend="openxla")`; inside a function that is being compiled
    it becomes part of that graph.

    A float8 cache holds keys / kv_scales[0] and values / kv_scales[1], clamped to +-448. Scales are calibrated per
    layer, so they belong to the layer and not to the cache: they are a buffer, which moves with `layer.to(device)` and
    is in its `state_dict`. If all heads have one scale, as vLLM's `k_scale` and `v_scale`, pass
    `torch.tensor([[k_scale], [v_scale]]).repeat(1, num_kv_heads)`.

    Args:
        num_heads: heads of the query.
        head_size: d, a multiple of 8 up to 256.
        scale: factor of the logits.
        num_kv_heads: heads of keys and values, a divisor of num_heads; None: num_heads.
        sliding_window: a token sees itself and the `sliding_window - 1` tokens before it; None: all.
        soft_cap: logits become `soft_cap * tanh(logits / soft_cap)`; None: as they are.
        kv_scales: [2, num_kv_heads], float32, above 0, only for a float8_e4m3fn cache; [0] for the keys, [1] for the
            values. None: ones, for any cache.
        mode: "direct" or "compile"; None: `PYXLA_ATTENTION_MODE`, else "direct".
        mesh: torch_xla's mesh with an axis "model": each device computes its heads, with their scales; None: one
            device.

    Attributes:
        kv_scales: as given.
        mode: the mode in use.

    Raises:
        ArgumentError: no such mode; heads that do not divide; scales of another dtype or shape, or scales on the CPU
            that are not all finite and above 0; a mesh that `pyxla.shard` refuses.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        *,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        kv_scales: torch.Tensor | None = None,
        mode: str | None = None,
        mesh: Mesh | None = None,
    ):
        super().__init__()
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.sliding_window, self.soft_cap = sliding_window, soft_cap
        self.mode = attention_mode(mode)
        grouped = self.num_kv_heads >= 1 and num_heads >= 1 and num_heads % self.num_kv_heads == 0
        check.that(grouped, "num_heads", f"a positive multiple of {self.num_kv_heads} kv heads", num_heads)
        if kv_scales is not None:
            _check_scales(kv_scales, self.num_kv_heads)
        self.register_buffer("kv_scales", kv_scales)
        self._reshape_and_cache = op_on(mesh, "reshape_and_cache", "heads")
        self._paged_attention = op_on(mesh, "paged_attention", "heads")
        # Not a bound method, so that copies of the layer share the compiled function.
        self._in_mode = in_mode(XlaGpuAttention._attend, self.mode)

    def _apply(self, fn, recurse=True):
        """Like torch's, but `model.to(torch.bfloat16)` does not convert the scales, which are always float32."""
        scales = self.kv_scales
        super()._apply(fn, recurse)
        if scales is not None and self.kv_scales.dtype != scales.dtype:
            self.kv_scales = scales.to(self.kv_scales.device)
        return self

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Computes the attention of the step's tokens.

        Args:
            query: [tokens, num_heads * head_size] or [tokens, num_heads, head_size]; float32, bfloat16 or float16.
            key: [tokens, num_kv_heads * head_size] or [tokens, num_kv_heads, head_size], query's dtype.
                None: the cache already holds the keys and values of the step's tokens, and is only read.
            value: as key; None if and only if key is.
            kv_cache: [2, blocks, block_size, num_kv_heads, head_size], query's dtype or float8_e4m3fn, only the latter
                if the layer has scales; updated in place.
            metadata: the step's metadata.

        Returns:
            A tensor of query's shape and dtype.

        Raises:
            ArgumentError: one of key and value without the other; as the ops `reshape_and_cache` and `paged_attention`.
        """
        if (key is None) != (value is None):
            expected, got = ("None", "a tensor") if key is None else ("a tensor", "None")
            check.that(
                False, "value", f"{expected}, as key is", got, "both are None where the cache holds them already"
            )
        # While a graph is being compiled, the layer becomes part of it; a compiled function inside would be a boundary.
        attend = XlaGpuAttention._attend if torch.compiler.is_compiling() else self._in_mode
        return attend(self, query, key, value, kv_cache, metadata)

    def _attend(self, query, key, value, kv_cache, metadata: AttentionMetadata) -> torch.Tensor:
        tokens = query.shape[0]
        if key is not None:
            key, value = (t.reshape(tokens, self.num_kv_heads, self.head_size) for t in (key, value))
            self._reshape_and_cache(key, value, kv_cache, metadata.slot_mapping, self.kv_scales)
        out = self._paged_attention(
            query.reshape(tokens, self.num_heads, self.head_size),
            kv_cache,
            metadata.context_lens,
            metadata.block_tables,
            metadata.query_start_loc,
            metadata.num_seqs,
            self.scale,
            self.sliding_window,
            self.soft_cap,
            kv_scales=self.kv_scales,
        )
        # On a mesh a view of the result would be one more result, with a copy.
        return out if out.shape == query.shape else out.reshape(query.shape)

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return f"{self.num_heads} heads of {self.head_size}, {self.num_kv_heads} of keys and values, mode {self.mode}"


def _check_scales(scales: torch.Tensor, kv_heads: int) -> None:
    check.dtype("kv_scales", scales, (torch.float32,))
    hint = "one for the keys and one for the values of each kv head"
    check.shape("kv_scales", scales, (2, kv_heads), hint=hint)
    if scales.device.type == "cpu":
        wrong = scales[~(scales.isfinite() & (scales > 0))]
        if len(wrong):
            # Some checkpoints have -1 for a scale that was never calibrated.
            hint = "leave kv_scales out where nothing was calibrated"
            check.that(False, "kv_scales", "finite numbers above 0", wrong[0].item(), hint)
