"""Inputs of paged_attention with many sequences that share their keys."""

from collections.abc import Callable
from typing import Any

import torch
from pyxla_kernels._paged_attention.batches import ROUNDED_WEIGHTS, arguments, integers, torch_attention

from pyxla.testing import Case


def same_keys(
    name: str, why: str, contexts: Callable[[torch.Generator], torch.Tensor], dtype: torch.dtype, **sizes: Any
) -> Case:
    """Many sequences with the same block table, each with some or all of its keys, so that a small cache is enough.

    Args:
        contexts: returns the context lengths, int32.
        sizes: keyword arguments of `arguments`.
    """

    def build(generator: torch.Generator) -> dict:
        lengths = contexts(generator)
        seqs = len(lengths)
        a = arguments(generator, [(1, int(lengths.max()))], dtype, **sizes)
        return a | {
            "query": torch.randn(seqs, *a["query"].shape[1:], generator=generator).to(dtype),
            "context_lens": lengths,
            "block_tables": a["block_tables"].repeat(seqs, 1),
            "query_start_loc": torch.arange(seqs + 1, dtype=torch.int32),
            "num_seqs": integers(seqs),
        }

    return Case(name, why, build, peer=torch_attention, cuda_roundings=ROUNDED_WEIGHTS.get(dtype), cuda_size=True)


SAME_KEYS = [
    same_keys(
        "many-items",
        "4224 splits on CUDA, which has slots for the results of 4096 at a time",
        lambda g: torch.full((22,), 5200, dtype=torch.int32),
        torch.bfloat16,
        heads=(64, 64),
        d=8,
    ),
    same_keys(
        "many-sequences",
        "more sequences than CUDA's table has entries; on CUDA those of more than 3072 keys come first",
        lambda g: torch.cat([integers(3400), torch.randint(1, 3400, (299,), generator=g, dtype=torch.int32)]),
        torch.float16,
        heads=(4, 1),
        d=16,
    ),
    same_keys(
        "short-sequences",
        "on CUDA 33 sequences share an entry of the table, more than a warp has lanes; few keys each",
        lambda g: torch.randint(1, 250, (6300,), generator=g, dtype=torch.int32),
        torch.bfloat16,
        heads=(4, 1),
        d=16,
    ),
]
