// What FlashInfer's kernel is told of a batch: which rows each of its thread blocks computes, and where keys lie.
//
// The lengths are on the device, and a handler may not wait for them. So the grid has as many slots as any lengths of
// these shapes can fill, and one kernel writes what each slot computes. A tile is `tile_rows` rows of one sequence and
// kv head, row = new token * group + head of the group. Sequence s has the slots from FirstSlot(its first row, s): by
// floor(a + b) + 1 >= floor(a) + ceil(b) these are enough for its tiles, so no sequence has to know of another's tiles.
//
// All functions are called by `threads` threads, of which each does its part; they run on the host too, where a
// test compares them with a model of FlashInfer's kernel.
#pragma once

#include <cstdint>

#include "_paged_attention/paged_attention.h"

#ifdef __CUDACC__
#define PYXLA_BOTH __host__ __device__ inline
#else
#define PYXLA_BOTH inline
#endif

namespace paged_attention_flashinfer {

using Params = pyxla::PagedAttentionParams;

inline constexpr int64_t kLeastTileRows = 16;

struct Plan {
  int32_t* sequences;    // [slots]
  int32_t* tiles;        // [slots]; of the sequence
  int32_t* first_pages;  // [seqs + 1]; where a sequence's entries in pages begin
  int32_t* pages;        // [seqs, max_blocks]; the block tables, with 0 for what is out of range or not in sight
  int32_t* chunk_keys;   // [1]; keys to a part of a context. The kernel divides by it also if nothing is cut in parts
  bool* is_used;         // [slots]
};

PYXLA_BOTH int64_t FirstSlot(const Params& p, int64_t tile_rows, int64_t row, int64_t seq) {
  return row * (p.heads / p.kv_heads) / tile_rows + seq;
}

PYXLA_BOTH int64_t Slots(const Params& p, int64_t tile_rows) { return FirstSlot(p, tile_rows, p.tokens, p.seqs); }

// Of the largest plan, as workspace_bytes in paged_attention_flashinfer.py.
inline int64_t PlanBytes(const Params& p) {
  const int64_t slots = Slots(p, kLeastTileRows);
  return 4 * (2 * slots + p.seqs + 1 + p.seqs * p.max_blocks + 1) + slots;
}

// Precondition: workspace has PlanBytes and is aligned for int32_t.
inline Plan PlaceIn(void* workspace, const Params& p, int64_t tile_rows) {
  const int64_t slots = Slots(p, tile_rows);
  Plan plan;
  plan.sequences = static_cast<int32_t*>(workspace);
  plan.tiles = plan.sequences + slots;
  plan.first_pages = plan.tiles + slots;
  plan.pages = plan.first_pages + p.seqs + 1;
  plan.chunk_keys = plan.pages + p.seqs * p.max_blocks;
  plan.is_used = reinterpret_cast<bool*>(plan.chunk_keys + 1);
  return plan;
}

// Rows of a tile, by the rows that a sequence has on average, as FlashInfer chooses. Shapes alone decide.
inline int64_t TileRows(const Params& p) {
  const int64_t average = p.tokens * (p.heads / p.kv_heads) / (p.seqs == 0 ? 1 : p.seqs);
  return average > 64 ? 128 : average > 16 ? 64 : 16;
}

// Whether this thread found num_seqs or query_start_loc wrong: then no row of the batch can be trusted.
PYXLA_BOTH bool FoundWrongBatch(const Params& p, int64_t thread, int64_t threads) {
  const int64_t count = p.num_seqs[0];
  if (count < 0 || count > p.seqs) return true;
  bool wrong = p.query_start_loc[0] != 0 || p.query_start_loc[count] > p.tokens;
  for (int64_t i = thread; i < count; i += threads) wrong = wrong || p.query_start_loc[i + 1] < p.query_start_loc[i];
  return wrong;
}

// The blocks [first, end) of a sequence's table that its new tokens see, and whether its length can be.
struct Sight {
  int64_t first, end;
  bool is_valid;
};

PYXLA_BOTH Sight SightOf(const Params& p, int64_t seq) {
  const int64_t length = p.context_lens[seq];
  const int64_t new_tokens = int64_t{p.query_start_loc[seq + 1]} - p.query_start_loc[seq];
  if (length < new_tokens || length > p.max_blocks * p.block_size) return {0, 0, false};
  if (new_tokens == 0) return {0, 0, true};
  const int64_t first = length - new_tokens - p.window + 1;
  return {first < 0 ? 0 : first / p.block_size, (length + p.block_size - 1) / p.block_size, true};
}

// Whether this thread found the sequence's length or one of its block ids wrong. Precondition: a good batch.
PYXLA_BOTH bool FoundWrongSequence(const Params& p, int64_t seq, int64_t thread, int64_t threads) {
  const Sight sight = SightOf(p, seq);
  bool wrong = !sight.is_valid;
  for (int64_t i = sight.first + thread; i < sight.end; i += threads) {
    const int32_t block = p.block_tables[seq * p.max_blocks + i];
    wrong = wrong || block < 0 || block >= p.blocks;
  }
  return wrong;
}

// One sequence's slots and pages; a wrong one has no tile. Precondition: a good batch.
PYXLA_BOTH void PlanSequence(const Params& p, const Plan& plan, int64_t tile_rows, int64_t seq, bool is_valid,
                             int64_t thread, int64_t threads) {
  const int64_t begin = p.query_start_loc[seq], end = p.query_start_loc[seq + 1];
  const int64_t tiles = is_valid ? ((end - begin) * (p.heads / p.kv_heads) + tile_rows - 1) / tile_rows : 0;
  const int64_t first = FirstSlot(p, tile_rows, begin, seq), next = FirstSlot(p, tile_rows, end, seq + 1);
  for (int64_t slot = first + thread; slot < next; slot += threads) {
    plan.is_used[slot] = slot < first + tiles;
    plan.sequences[slot] = static_cast<int32_t>(seq);
    plan.tiles[slot] = static_cast<int32_t>(slot - first);
  }
  const Sight sight = SightOf(p, seq);
  for (int64_t i = thread; i < p.max_blocks; i += threads) {
    const bool in_sight = is_valid && sight.first <= i && i < sight.end;
    plan.pages[seq * p.max_blocks + i] = in_sight ? p.block_tables[seq * p.max_blocks + i] : 0;
  }
}

// The slots behind the last one in use, and what does not depend on lengths. `rows` and `count` are those in use.
PYXLA_BOTH void PlanRest(const Params& p, const Plan& plan, int64_t tile_rows, int64_t rows, int64_t count,
                         int64_t thread, int64_t threads) {
  const int64_t slots = Slots(p, tile_rows);
  for (int64_t slot = FirstSlot(p, tile_rows, rows, count) + thread; slot < slots; slot += threads) {
    plan.is_used[slot] = false;
  }
  for (int64_t i = thread; i <= p.seqs; i += threads) plan.first_pages[i] = static_cast<int32_t>(i * p.max_blocks);
  // The kernel looks up pages behind the last sequence's, and does not load what they name.
  for (int64_t i = count * p.max_blocks + thread; i < p.seqs * p.max_blocks; i += threads) plan.pages[i] = 0;
  if (thread == 0) plan.chunk_keys[0] = 1;
}

// Eight elements of a row.
struct alignas(16) Vector {
  uint32_t words[4];
};

// Two NaN, of float16 as of bfloat16.
inline constexpr uint32_t kNaN = 0x7fff7fff;

// Rows [begin, end) of out. A row is whole vectors, as head_dim is a multiple of 8.
PYXLA_BOTH void FillRows(const Params& p, int64_t begin, int64_t end, uint32_t word, int64_t thread, int64_t threads) {
  const int64_t row_vectors = p.heads * p.head_dim / 8;
  Vector* out = static_cast<Vector*>(p.out);
  for (int64_t i = begin * row_vectors + thread; i < end * row_vectors; i += threads) {
    out[i] = {{word, word, word, word}};
  }
}

// Writes the plan, and all rows that no tile of it computes: zero in padding, NaN where a length or block id is wrong.
// `any` tells all threads of a block whether one of them calls it with true.
template <typename Any>
PYXLA_BOTH void PlanBatch(const Params& p, const Plan& plan, int64_t tile_rows, int64_t block, int64_t blocks,
                          int64_t thread, int64_t threads, const Any& any) {
  const bool is_valid = !any(FoundWrongBatch(p, thread, threads));
  const int64_t count = is_valid ? p.num_seqs[0] : 0, rows = is_valid ? p.query_start_loc[count] : 0;
  for (int64_t seq = block; seq < count; seq += blocks) {
    const bool is_sequence_valid = !any(FoundWrongSequence(p, seq, thread, threads));
    PlanSequence(p, plan, tile_rows, seq, is_sequence_valid, thread, threads);
    if (!is_sequence_valid) FillRows(p, p.query_start_loc[seq], p.query_start_loc[seq + 1], kNaN, thread, threads);
  }
  PlanRest(p, plan, tile_rows, rows, count, block * threads + thread, blocks * threads);
  FillRows(p, rows, p.tokens, is_valid ? 0 : kNaN, block * threads + thread, blocks * threads);
}

}  // namespace paged_attention_flashinfer
