"""How paged_attention is timed: batches of full caches, with FlashInfer as a baseline. bench_list.py lists them."""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from pyxla_kernels._paged_attention.batches import ROUNDED_WEIGHTS, integers, torch_attention

from pyxla.benchmark import Bench, nbytes

# Number of rows that are compared with the reference, which computes one row at a time.
_SAMPLED = 24
# Not a multiple of any block's length, so that the blocks of the repeated numbers differ.
_RANDOM = 4_000_037
_FLASHINFER_WORKSPACE = 512 << 20


def batch(
    generator: torch.Generator,
    lengths: Iterable[tuple[int, int]],
    dtype: torch.dtype,
    *,
    heads: tuple[int, int] = (32, 8),
    d: int = 128,
    block_size: int = 16,
    soft_cap: float | None = None,
    cache_dtype: torch.dtype | None = None,
) -> dict:
    """A batch in which every slot is in use, its blocks in random order.

    Args:
        lengths: (new tokens, context) of each sequence.
        heads: query and kv heads.
        cache_dtype: None: dtype.
    """
    lengths, (heads, kv_heads) = list(lengths), heads
    counts = [-(-context // block_size) for _, context in lengths]
    ids = torch.randperm(sum(counts), generator=generator, dtype=torch.int32)
    tables = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
    for table, own in zip(tables, ids.split(counts), strict=True):
        table[: len(own)] = own
    shape = (2, len(ids), block_size, kv_heads, d)
    # The cache has gigabytes; a few million random numbers are drawn and repeated.
    drawn = torch.randn(_RANDOM, generator=generator).to(cache_dtype or dtype)
    cache = drawn.repeat(-(-math.prod(shape) // _RANDOM))[: math.prod(shape)].view(shape)
    starts = torch.tensor([0, *(new for new, _ in lengths)]).cumsum(0)
    return {
        "query": torch.randn(int(starts[-1]), heads, d, generator=generator).to(dtype),
        "kv_cache": cache,
        "context_lens": integers(*(context for _, context in lengths)),
        "block_tables": tables,
        "query_start_loc": starts.int(),
        "num_seqs": integers(len(lengths)),
        "scale": 1 / math.sqrt(d),
        "sliding_window": None,
        "soft_cap": soft_cap,
        "alibi_slopes": None,
        "sinks": None,
        "kv_scales": None,
    }


def moved_bytes(a: dict) -> int:
    """Each key and value in sight once, the query, the result."""
    _, _, _, kv_heads, d = a["kv_cache"].shape
    return 2 * int(a["context_lens"].sum()) * kv_heads * d * a["kv_cache"].itemsize + nbytes(a["query"], a["query"])


def operations(a: dict) -> int:
    """Two products of length d for each head, new token and key that the token sees."""
    _, heads, d = a["query"].shape
    seen = 0
    for (start, end), context in zip(pairwise(a["query_start_loc"].tolist()), a["context_lens"].tolist(), strict=True):
        new = end - start
        seen += new * (context - new) + new * (new + 1) // 2
    return 4 * heads * d * seen


def sample(a: dict) -> tuple[dict, torch.Tensor]:
    """Some rows, each as the only new token of a sequence that ends with it, as no row may depend on the others."""
    starts, lengths = a["query_start_loc"].tolist(), a["context_lens"].tolist()
    ends = [row for start, end in pairwise(starts) for row in (start, end - 1)]
    generator = torch.Generator().manual_seed(0)
    chosen = [*ends[:2], *ends[-2:], *torch.randint(0, starts[-1], (_SAMPLED - 4,), generator=generator).tolist()]
    rows = torch.tensor(sorted(set(chosen)))
    sequences = torch.searchsorted(a["query_start_loc"].long(), rows, right=True) - 1
    positions = [
        lengths[s] - (starts[s + 1] - row) + 1 for row, s in zip(rows.tolist(), sequences.tolist(), strict=True)
    ]
    # Only the blocks of these sequences, because float64 takes four times the memory.
    used, tables = a["block_tables"][sequences].unique(return_inverse=True)
    return a | {
        "query": a["query"][rows],
        # torch indexes no float8.
        "kv_cache": a["kv_cache"].view(torch.uint8)[:, used.long()].view(a["kv_cache"].dtype),
        "context_lens": integers(*positions),
        "block_tables": tables.int(),
        "query_start_loc": torch.arange(len(rows) + 1, dtype=torch.int32),
        "num_seqs": integers(len(rows)),
    }, rows


def flashinfer(kind: str) -> Callable[..., Callable[[], Any]]:
    """FlashInfer's attention over the same cache; its plan, which reads the lengths on the host, is made beforehand.

    Args:
        kind: "decode", on tensor cores, or the backend of a prefill: "fa2", "fa3".
    """

    def prepare(**a: Any) -> Callable[[], Any]:
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

        query, (keys, values) = a["query"], a["kv_cache"]
        block_size, kv_heads = keys.shape[1:3]
        lengths, tables = a["context_lens"].cpu(), a["block_tables"].cpu()
        counts = (lengths + block_size - 1) // block_size
        starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int().to(query.device)
        ids = torch.cat([table[:count] for table, count in zip(tables, counts.tolist(), strict=True)]).to(query.device)
        last = (lengths - (counts - 1) * block_size).int().to(query.device)
        sizes = (query.shape[1], kv_heads, query.shape[2], block_size)
        options = {"q_data_type": query.dtype, "kv_data_type": keys.dtype, "sm_scale": a["scale"]}
        options["logits_soft_cap"] = a["soft_cap"]
        workspace = torch.empty(_FLASHINFER_WORKSPACE, dtype=torch.uint8, device=query.device)
        if kind == "decode":
            wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
            wrapper.plan(starts, ids, last, *sizes, **options)
        else:
            wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=kind)
            wrapper.plan(a["query_start_loc"], starts, ids, last, *sizes, causal=True, **options)
        return lambda: wrapper.run(query, (keys, values))

    return prepare


def bench(
    name: str,
    why: str,
    lengths: Iterable[tuple[int, int]],
    device: str,
    dtype: torch.dtype,
    *kinds: str,
    beside_torch: bool = True,
    **sizes: Any,
) -> Bench:
    """A bench for one device.

    Args:
        kinds: for `flashinfer`; each is timed.
        beside_torch: whether torch is timed too, a sequence at a time.
        sizes: keyword arguments of `batch`.
    """
    return Bench(
        name,
        why,
        lambda g: batch(g, lengths, dtype, **sizes),
        bytes=moved_bytes,
        operations=operations,
        peer=torch_attention if beside_torch else None,
        reads_lengths=True,
        others={f"flashinfer {kind}": flashinfer(kind) for kind in kinds},
        sample=sample,
        roundings=ROUNDED_WEIGHTS.get(dtype, 16),
        devices=(device,),
    )


def ragged(count: int, longest: int) -> list[tuple[int, int]]:
    """Decodes whose contexts are halved again and again, down to 1, so that most are short."""
    return [(1, max(1, (longest >> number % 15) - number // 15)) for number in range(count)]
