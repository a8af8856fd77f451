"""Runs the kernel that makes FlashInfer's plan on threads of the host, and follows the plan as FlashInfer's would."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyxla_kernels._paged_attention.bad_inputs import Bad, bad_lengths, changed
from pyxla_kernels._paged_attention.batches import integers
from pyxla_kernels._paged_attention.cases import BF16
from pyxla_kernels.paged_attention_flashinfer.paged_attention_flashinfer import flashinfer, workspace_bytes

from pyxla import ArgumentError, include_dir

KERNELS = Path(__file__).resolve().parents[1]
GUARD = 0x5A
# CTAs whose threads wait for each other as on the GPU; they synchronise only in `any`.
SOURCE = """
#include <barrier>
#include <thread>
#include <vector>
#include "paged_attention_flashinfer/paged_attention_flashinfer_plan.h"

using namespace paged_attention_flashinfer;

extern "C" int64_t plan_bytes(const Params* p) { return PlanBytes(*p); }
extern "C" int64_t tile_rows(const Params* p) { return TileRows(*p); }
extern "C" int64_t slots(const Params* p, int64_t tile_rows) { return Slots(*p, tile_rows); }
extern "C" void plan_batch(const Params* p, int64_t tile_rows, int64_t blocks, int64_t threads) {
  const Plan plan = PlaceIn(p->workspace, *p, tile_rows);
  for (int64_t block = 0; block < blocks; ++block) {
    std::barrier barrier(threads);
    std::vector<char> found(threads);
    std::vector<std::jthread> running;
    for (int64_t thread = 0; thread < threads; ++thread) {
      running.emplace_back([&, thread] {
        PlanBatch(*p, plan, tile_rows, block, blocks, thread, threads, [&](bool value) {
          found[thread] = value;
          barrier.arrive_and_wait();
          bool any = false;
          for (char one : found) any = any || one;
          barrier.arrive_and_wait();
          return any;
        });
      });
    }
  }
}
"""


class Params(ctypes.Structure):
    """As PagedAttentionParams in _paged_attention/paged_attention.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "kv_cache", "context_lens", "block_tables")),
        *((name, ctypes.c_void_p) for name in ("query_start_loc", "num_seqs", "alibi_slopes", "sinks", "kv_scales")),
        *((name, ctypes.c_void_p) for name in ("out", "lse", "workspace")),
        *((name, ctypes.c_int64) for name in ("tokens", "heads", "kv_heads", "head_dim", "blocks", "block_size")),
        *((name, ctypes.c_int64) for name in ("seqs", "max_blocks", "window")),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
        ("dtype", ctypes.c_int),
        ("kv_dtype", ctypes.c_int),
    )


@pytest.fixture(scope="module")
def planner(tmp_path_factory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.cc").write_text(SOURCE)
    command = [
        "g++",
        "-std=c++20",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        "-pthread",
        f"-I{KERNELS}",
        f"-I{include_dir()}",
    ]
    subprocess.run([*command, "-o", folder / "plan.so", folder / "plan.cc"], check=True)
    library = ctypes.CDLL(str(folder / "plan.so"))
    for function in (library.plan_bytes, library.tile_rows, library.slots):
        function.restype = ctypes.c_int64
    return library


def params(a: dict, out: torch.Tensor, workspace: torch.Tensor) -> Params:
    tokens, heads, d = a["query"].shape
    _, blocks, block_size, kv_heads, _ = a["kv_cache"].shape
    tensors = {name: tensor.data_ptr() for name, tensor in a.items() if isinstance(tensor, torch.Tensor)}
    sizes = {"tokens": tokens, "heads": heads, "kv_heads": kv_heads, "head_dim": d, "blocks": blocks}
    sizes |= {"block_size": block_size, "seqs": len(a["context_lens"]), "max_blocks": a["block_tables"].shape[1]}
    window = a["sliding_window"] or 2**31 - 1
    return Params(**tensors, **sizes, window=window, out=out.data_ptr(), workspace=workspace.data_ptr())


def attend(a: dict, out: torch.Tensor, plan: torch.Tensor, tile_rows: int, slots: int) -> torch.Tensor:
    """Follows the plan as FlashInfer's kernel does, in float64; returns how often each row and head was written."""
    tokens, heads, _ = a["query"].shape
    _, blocks, page, kv_heads, _ = a["kv_cache"].shape
    seqs, max_blocks = a["block_tables"].shape
    group, written = heads // kv_heads, torch.zeros(tokens, heads, dtype=torch.int32)
    parts = (slots, slots, seqs + 1, seqs * max_blocks, 1)
    sequences, tiles, first_pages, pages, chunk_keys = plan[: 4 * sum(parts)].view(torch.int32).split(parts)
    is_used = plan[4 * sum(parts) :][:slots].tolist()
    # All pages are looked up, also those whose keys are not loaded.
    assert chunk_keys.item() > 0 and set(is_used) <= {0, 1} and pages.numel() == first_pages[-1]
    assert ((pages >= 0) & (pages < max(1, blocks))).all()
    for slot in (slot for slot in range(slots) if is_used[slot]):
        seq, tile = sequences[slot].item(), tiles[slot].item()
        begin, end = a["query_start_loc"][seq : seq + 2].tolist()
        context, window = a["context_lens"][seq].item(), a["sliding_window"] or 2**31
        rows = range(tile * tile_rows, min((tile + 1) * tile_rows, (end - begin) * group))
        assert rows, "a tile without a row"
        for row in rows:
            token = begin + row // group
            position = context - (end - token)
            seen = torch.arange(max(0, position - window + 1), position + 1)
            places = pages[first_pages[seq] + seen // page].long()
            for kv_head in range(kv_heads):
                keys, values = a["kv_cache"][:, places, seen % page, kv_head].double()
                head = kv_head * group + row % group
                weights = (a["scale"] * keys @ a["query"][token, head].double()).softmax(0)
                out[token, head] = (weights @ values).to(out.dtype)
                written[token, head] += 1
    return written


@st.composite
def batches(draw) -> dict:
    """Ragged batches, most of them with padding or a wrong value."""
    seqs, page = draw(st.integers(1, 6)), draw(st.sampled_from([1, 3, 8]))
    new = [draw(st.integers(0, 30)) for _ in range(seqs)]
    max_blocks, blocks = draw(st.integers(4, 12)), draw(st.integers(1, 20))
    count, rows = draw(st.integers(0, seqs)), sum(new) + draw(st.integers(0, 5))
    contexts = [draw(st.integers(n, n + 3 * page)) for n in new]
    contexts = [min(context, max_blocks * page) for context in contexts]  # too short where n does not fit
    table = draw(st.lists(st.integers(0, blocks - 1), min_size=seqs * max_blocks, max_size=seqs * max_blocks))
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    a = {
        "query": torch.randn(rows, kv_heads * group, 64, generator=generator).half(),
        "kv_cache": torch.randn(2, blocks, page, kv_heads, 64, generator=generator).half(),
        "context_lens": integers(*contexts),
        "block_tables": integers(*table).reshape(seqs, max_blocks),
        "query_start_loc": integers(*(sum(new[:i]) for i in range(seqs + 1))),
        "num_seqs": integers(count),
        "scale": 0.1,
        "sliding_window": draw(st.sampled_from([None, 1, 5])),
    }
    wrong = draw(st.sampled_from([None, None, "context_lens", "block_tables", "query_start_loc", "num_seqs"]))
    if wrong:
        values = a[wrong].flatten()
        values[draw(st.integers(0, len(values) - 1))] = draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 40))
    return a


def expected(a: dict) -> torch.Tensor:
    """The reference's rows; NaN where it raises: in the rows of a wrong sequence, or in all."""
    try:
        return flashinfer(**a)
    except ArgumentError as error:
        _, _, where = error.message.partition("at sequence ")
    if not where:
        return torch.full_like(a["query"], torch.nan)
    # The batch without this sequence's new tokens and context; the rest is unchanged.
    seq = int(where.partition(",")[0])
    begin, end = a["query_start_loc"][seq : seq + 2].tolist()
    starts, contexts = a["query_start_loc"].clone(), a["context_lens"].clone()
    starts[seq + 1 :] -= end - begin
    contexts[seq] = 0
    query = torch.cat([a["query"][:begin], a["query"][end:]])
    others = expected(a | {"query": query, "context_lens": contexts, "query_start_loc": starts})
    return torch.cat([others[:begin], torch.full_like(a["query"][begin:end], torch.nan), others[begin:]])


def check_plan(planner, a: dict, tile_rows: int | None, blocks: int, threads: int) -> None:
    """Following the plan, and the rows that it fills, give the reference's result. tile_rows None: the op's choice."""
    out = torch.full_like(a["query"], 77.0)
    size = workspace_bytes(a["query"], a["kv_cache"], a["context_lens"], a["block_tables"])
    workspace = torch.full((size + 64,), GUARD, dtype=torch.uint8)
    p = params(a, out, workspace)
    tile_rows = tile_rows or planner.tile_rows(ctypes.byref(p))
    slots = planner.slots(ctypes.byref(p), ctypes.c_int64(tile_rows))
    assert planner.plan_bytes(ctypes.byref(p)) == size
    planner.plan_batch(ctypes.byref(p), *map(ctypes.c_int64, (tile_rows, blocks, threads)))
    assert (workspace[size:] == GUARD).all()

    filled = out.clone()
    written = attend(a, out, workspace, tile_rows, slots)
    # Each row is written by the plan's kernel or by one tile, never by both, so that the two kernels do not race.
    assert torch.equal(written, (filled == 77.0).all(dim=2).int())
    torch.testing.assert_close(out, expected(a), rtol=1e-2, atol=1e-3, equal_nan=True)


@given(
    a=batches(),
    tile_rows=st.sampled_from([None, 16, 64]),
    blocks=st.integers(1, 4),
    threads=st.sampled_from([1, 3, 8]),
)
def test_any_batch(planner, a, tile_rows, blocks, threads):
    check_plan(planner, a, tile_rows, blocks, threads)


BAD_LENGTHS = bad_lengths(Bad("paged_attention", lambda **changes: changed(BF16, **changes)))


# Wrong values close to good ones.
@pytest.mark.parametrize("bad", [bad for bad in BAD_LENGTHS if bad.at_run_time], ids=str)
def test_wrong_values(planner, bad):
    check_plan(planner, bad.arguments(), None, 2, 3)


def shape(tokens: int, seqs: int, group: int) -> dict:
    return {
        "query": torch.zeros(tokens, group, 64, dtype=torch.half),
        "kv_cache": torch.zeros(2, 1, 1, 1, 64, dtype=torch.half),
        "context_lens": torch.zeros(seqs, dtype=torch.int32),
        "block_tables": torch.zeros(seqs, 1, dtype=torch.int32),
        "sliding_window": None,
    }


@pytest.mark.parametrize(
    ("tokens", "seqs", "group", "rows"),
    [(64, 64, 8, 16), (64, 64, 16, 16), (64, 64, 17, 64), (512, 64, 8, 64), (520, 64, 8, 128), (5, 0, 1, 16)],
)
def test_rows_of_a_tile_by_the_average_of_the_shapes(planner, tokens, seqs, group, rows):
    a = shape(tokens, seqs, group)
    assert planner.tile_rows(ctypes.byref(params(a, a["query"], a["query"]))) == rows
