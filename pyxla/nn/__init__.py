"""What a decoder puts around paged attention: the layer, the function under the names of vLLM, the cache.

Not imported by `import pyxla`. The ops are named through torch's registry (`torch.ops.xla_gpu.<op>`), as any user names
them: pyxla itself goes on knowing no op, and nothing of pyxla outside this folder imports it.
"""

from pyxla.nn.attention import AttentionMetadata, XlaGpuAttention, xla_gpu_paged_attention
from pyxla.nn.block_tables import BlockTables, CachedSequence
from pyxla.nn.kv_cache import PagedKVCache
from pyxla.nn.mode import attention_mode, in_mode
from pyxla.nn.on_mesh import op_on, split
from pyxla.nn.packing import pack, unpack

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
    "split",
    "unpack",
    "xla_gpu_paged_attention",
]
