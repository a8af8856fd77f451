// What follows from the arguments' shapes for the decode kernel: how it divides keys, and the results that it stores.
#pragma once

#include "paged_attention/workspace.cuh"
#include "pyxla/device/ptx/cp_async.cuh"

namespace paged_attention::decode {

// A multiple of the keys of one round of KV tiles over the warps of a CTA, of any shape.
inline constexpr int kKeyUnit = 384;
// Keys of a split, about, if there is more than one. A sequence of fewer than kWholeKeys is not split: to reduce splits
// costs more than idle CTAs do, see NOTES.md. A split is a multiple of kSplitUnit, so that the warps get about as many
// keys each.
inline constexpr int kSplitKeys = 2048, kWholeKeys = 5 * kSplitKeys / 2, kSplitUnit = 96;
// A work tile of more keys is long: a sequence that is not split, or one of so many heads or keys that its splits are
// longer.
inline constexpr int kLongKeys = 3 * kSplitKeys / 2;
// Splits times kv heads of a sequence, at most: what one sequence alone needs to fill a large GPU.
inline constexpr int kSequenceTiles = 264;
// A call that can read no more than this loads keys and values with evict_first: dirty lines of other kernels then stay
// in L2. That costs a longer call more than it saves, see NOTES.md.
inline constexpr int64_t kFewBytes = 300'000'000;
// Rows for the results of splits. A work tile's slot is its number modulo their count; it waits until the last result
// there has been reduced.
inline constexpr int kSlotRows = 2048 * kDecodeRows;
static_assert(kSequenceTiles <= kSlotRows / kMoreRows, "the splits of a tile never wait for one another");

// Shares of a work tile, at most.
inline constexpr int kMostShares = 6;

// Division of a number below 2^31 by a multiplication.
// Source: Granlund and Montgomery, "Division by invariant integers using multiplication", 1994.
class Divider {
 public:
  Divider() = default;
  explicit Divider(int divisor) : divisor_(divisor), shift_(31) {
    while ((1u << (shift_ - 31)) < static_cast<uint32_t>(divisor)) ++shift_;
    factor_ = ((uint64_t{1} << shift_) - 1) / divisor + 1;
  }
  __device__ int Quotient(int n) const {
    return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * factor_ >> shift_);
  }
  __device__ int Remainder(int n, int quotient) const { return n - quotient * divisor_; }

 private:
  uint32_t factor_;
  int divisor_, shift_;
};

// What follows from the arguments' shapes, as the kernel needs it.
struct Plan {
  Plan(const Params& p, bool all_rows, int tile_rows, int entries);

  Divider group_divider, kv_head_divider, block_divider;
  int tile_rows, tiles, group, heads, kv_heads, d, window;
  int decode_tokens, seqs_per_entry, max_splits, slots;
  int block_size, row_bytes;  // keys; bytes of a key's head
  uint32_t blocks;
  bool has_groups;                     // pages consist of whole groups of sixteen keys
  int64_t value_offset;                // in bytes, from keys to values
  int64_t prefill_counters, counters;  // in the workspace; of both kernels
  uint64_t policy;                     // of the copies of keys and values
  float inverse_cap;                   // 0: none
  bool all_rows;
};

// Whether a call may have few work tiles. Then the workspace has (m, l, O) of each share of them, after the slots'.
inline bool MayBeFew(const Params& p) {
  return p.seqs * p.kv_heads * CeilDiv(p.heads / p.kv_heads, kDecodeRows) <= kFewTiles;
}

inline int64_t FewRows(const Params& p) { return MayBeFew(p) ? kFewTiles * kMostShares * kDecodeRows : 0; }

inline int64_t MaxSplits(const Params& p) { return p.kv_heads > kSequenceTiles ? 1 : kSequenceTiles / p.kv_heads; }

inline int64_t SlotRows(const Params& p) {
  const int64_t splits = CeilDiv(p.max_blocks * p.block_size, kSplitKeys), most = MaxSplits(p);
  const int64_t slots = DecodeTiles(p) * (splits < most ? splits : most), few = MayBeFew(p) ? kFewTiles : 0;
  const int64_t rows = (slots > few ? slots : few) * kDecodeRows;
  return rows < kSlotRows ? rows : kSlotRows;
}

inline Plan::Plan(const Params& p, bool all_rows, int tile_rows, int entries)
    : group_divider(static_cast<int>(p.heads / p.kv_heads)),
      kv_head_divider(static_cast<int>(p.kv_heads)),
      block_divider(static_cast<int>(p.block_size)),
      tile_rows(tile_rows),
      tiles(static_cast<int>(CeilDiv(DecodeTokens(p) * (p.heads / p.kv_heads), tile_rows))),
      group(static_cast<int>(p.heads / p.kv_heads)),
      heads(static_cast<int>(p.heads)),
      kv_heads(static_cast<int>(p.kv_heads)),
      d(static_cast<int>(p.head_dim)),
      window(static_cast<int>(p.window)),
      decode_tokens(static_cast<int>(DecodeTokens(p))),
      seqs_per_entry(static_cast<int>(CeilDiv(p.seqs, entries))),
      max_splits(static_cast<int>(MaxSplits(p))),
      slots(static_cast<int>(SlotRows(p) / tile_rows)),
      block_size(static_cast<int>(p.block_size)),
      row_bytes(static_cast<int>(p.head_dim) * (p.kv_dtype == Dtype::kFloat8E4M3 ? 1 : 2)),
      blocks(static_cast<uint32_t>(p.blocks)),
      has_groups(p.block_size % 16 == 0),
      value_offset(p.blocks * p.block_size * p.kv_heads * row_bytes),
      prefill_counters(PrefillCounters(p)),
      counters(CounterBytes(p) / 4),
      policy(p.seqs * p.max_blocks * p.block_size * p.kv_heads * row_bytes * 2 <= kFewBytes ? ptx::kEvictFirst
                                                                                            : ptx::kEvictNormal),
      inverse_cap(p.soft_cap > 0 ? 1 / p.soft_cap : 0),
      all_rows(all_rows) {}

}  // namespace paged_attention::decode
