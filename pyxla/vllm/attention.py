"""vLLM's attention layer on pyxla's ops, with the cache updated in place."""

from __future__ import annotations

import torch
from vllm.attention.backends.abstract import AttentionBackend, AttentionImpl, AttentionType

from pyxla.nn import AttentionMetadata
from pyxla.vllm.mesh import op, place
from pyxla.vllm.refusal import FLOAT8, refuse_unless


class XlaAttentionBackend(AttentionBackend):
    """The classes and shapes of paged attention on XLA."""

    # XLA has no use for a buffer of vLLM's: a result is a new tensor.
    accept_output_buffer = False

    @staticmethod
    def get_name() -> str:
        """vLLM's name of those that are not its own."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """The class of a layer's attention."""
        return XlaAttentionImpl

    @staticmethod
    def get_metadata_cls() -> type:
        """The class of what the layers of a step share."""
        return AttentionMetadata

    @staticmethod
    def get_builder_cls() -> type:
        """Not there: the runner unpacks the metadata inside the step's graph."""
        raise NotImplementedError

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Those of paged_attention."""
        return list(range(8, 257, 8))

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """The shape of a layer's cache; [0] the keys, [1] the values."""
        return (2, num_blocks, block_size, num_kv_heads, head_size)


class XlaAttentionImpl(AttentionImpl):
    """The attention of one layer: writes the step's keys and values into the cache, then attends over it."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ):
        refuse_unless(attn_type == AttentionType.DECODER, "attention", "a decoder's", attn_type)
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.sliding_window = sliding_window
        self.soft_cap = logits_soft_cap or None
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.sinks = sinks
        self.kv_scales: torch.Tensor | None = None
        self.writes_cache = kv_sharing_target_layer_name is None
        self._store, self._attend = op("reshape_and_cache", "heads"), op("paged_attention", "heads")

    def to(self, device: torch.device, owner: torch.nn.Module) -> None:
        """Moves what is no parameter of the model, as the ops want it.

        Args:
            device: the XLA device.
            owner: the layer that writes the cache, with the scales of a float8 cache.
        """
        if owner.kv_cache_dtype in FLOAT8:
            scales = torch.tensor([[owner._k_scale_float], [owner._v_scale_float]])
            self.kv_scales = scales.expand(2, self.num_kv_heads).contiguous()
        for name in ("alibi_slopes", "sinks", "kv_scales"):
            tensor = getattr(self, name)
            if tensor is not None:
                # The heads are the last dimension of each.
                setattr(self, name, place(tensor.detach().to(device, torch.float32), tensor.dim() - 1))

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: AttentionMetadata,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The attention of the step's tokens: query [tokens, heads * d], key and value [tokens, kv_heads * d]."""
        tokens = query.shape[0]
        if self.writes_cache:
            key, value = (t.view(tokens, self.num_kv_heads, self.head_size) for t in (key, value))
            self._store(key, value, kv_cache, attn_metadata.slot_mapping, self.kv_scales)
        query = query.view(tokens, self.num_heads, self.head_size)
        return self.attend(query, kv_cache, attn_metadata).flatten(1)

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, attn_metadata: AttentionMetadata) -> torch.Tensor:
        """The attention of query [tokens, heads, d] to a cache with all keys and values; as query."""
        return self._attend(
            query,
            kv_cache,
            attn_metadata.context_lens,
            attn_metadata.block_tables,
            attn_metadata.query_start_loc,
            attn_metadata.num_seqs,
            self.scale,
            self.sliding_window,
            self.soft_cap,
            self.alibi_slopes,
            self.sinks,
            self.kv_scales,
        )
