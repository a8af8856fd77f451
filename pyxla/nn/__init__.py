"""The parts of a decoder around paged attention: the layer, the function with vLLM's argument names, the cache.

`import pyxla` does not import it. It refers to the ops as any user does (`torch.ops.xla_gpu.<op>`, `pyxla.find_op`):
the rest of pyxla knows no op, and imports nothing from this package.
"""

from pyxla.nn.attention import AttentionMetadata, XlaGpuAttention, xla_gpu_paged_attention
from pyxla.nn.block_tables import BlockTables, CachedSequence
from pyxla.nn.kv_cache import PagedKVCache
from pyxla.nn.mode import attention_mode, in_mode
from pyxla.nn.on_mesh import op_on, split
from pyxla.nn.packing import pack, unpack
from pyxla.nn.row_parallel import row_parallel_norm

__all__ = [
    "AttentionMetadata",
    "BlockTables",
    "CachedSequence",
    "PagedKVCache",
    "XlaGpuAttention",
    "attention_mode",
    "in_mode",
    "op_on",
    "pack",
    "row_parallel_norm",
    "split",
    "unpack",
    "xla_gpu_paged_attention",
]
