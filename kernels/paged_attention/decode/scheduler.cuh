// The decode kernel's work, found on the device from the lengths: work tiles of (tile of rows, kv head, split of keys).
//
// Work tiles are numbered sequence by sequence, those with long work tiles first, so that what is left at the end is
// short. Within a sequence the kv heads of a split are neighbours, because their keys are, then come the splits of a
// tile, then the tiles. How a sequence is cut depends on its own lengths and on shapes other than the batch's, so that
// a row's result does not depend on the rest of the batch.
#pragma once

#include <climits>

#include "paged_attention/sequences.cuh"
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
static_assert(kSequenceTiles <= kSlotRows / kDecodeRows, "the splits of a tile never wait for one another");

// This thread's lane, opaque to the compiler: else it would keep all that it computes from the lane in registers
// throughout, and run out of them.
__device__ inline int Lane() {
  int lane = threadIdx.x % kWarpSize;
  asm volatile("" : "+r"(lane));
  __builtin_assume(0 <= lane && lane < kWarpSize);
  return lane;
}

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
  bool has_groups;                 // pages consist of whole groups of sixteen keys
  int64_t value_offset, counters;  // in bytes, from keys to values; in the workspace
  uint64_t policy;                 // of the copies of keys and values
  float inverse_cap;               // 0: none
  bool all_rows;
};

// The workspace: counters, one for each tile that may have several splits, and last that of work tiles taken; then each
// slot's (m, l) of its rows; then their O.
inline int64_t DecodeTiles(const Params& p) { return p.seqs * p.kv_heads * CeilDiv(p.heads / p.kv_heads, kDecodeRows); }

// A tile has half of kDecodeRows, or all.
inline int64_t CounterBytes(const Params& p) { return CeilDiv((2 * DecodeTiles(p) + 1) * 4, 256) * 256; }

inline int64_t MaxSplits(const Params& p) { return p.kv_heads > kSequenceTiles ? 1 : kSequenceTiles / p.kv_heads; }

inline int64_t SlotRows(const Params& p) {
  const int64_t splits = CeilDiv(p.max_blocks * p.block_size, kSplitKeys), most = MaxSplits(p);
  const int64_t rows = DecodeTiles(p) * (splits < most ? splits : most) * kDecodeRows;
  return rows < kSlotRows ? rows : kSlotRows;
}

inline Plan::Plan(const Params& p, bool all_rows, int tile_rows, int entries)
    : group_divider(static_cast<int>(p.heads / p.kv_heads)),
      kv_head_divider(static_cast<int>(p.kv_heads)),
      block_divider(static_cast<int>(p.block_size)),
      tile_rows(tile_rows),
      tiles(static_cast<int>(CeilDiv(p.heads / p.kv_heads, kDecodeRows) * (kDecodeRows / tile_rows))),
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
      counters(CounterBytes(p) / 4),
      policy(p.seqs * p.max_blocks * p.block_size * p.kv_heads * row_bytes * 2 <= kFewBytes ? ptx::kEvictFirst
                                                                                            : ptx::kEvictNormal),
      inverse_cap(p.soft_cap > 0 ? 1 / p.soft_cap : 0),
      all_rows(all_rows) {}

struct WorkTile {
  int seq, kv_head;
  int query_row, position;  // of the sequence's first new token
  int row, rows;            // of the sequence's new_tokens * group rows, token by token
  int begin, end;           // keys of the split, without those that no row of the tile sees
  int split, splits;        // of the tile
  bool is_valid;
};

// A row of the tile: its head and its token's number among the new ones.
struct Row {
  int head, token;
};

__device__ inline Row RowOf(const Plan& plan, const WorkTile& work, int row) {
  const int of_sequence = work.row + min(row, work.rows - 1), token = plan.group_divider.Quotient(of_sequence);
  return {work.kv_head * plan.group + plan.group_divider.Remainder(of_sequence, token), token};
}

// Keys [first, length) of a sequence in splits of `keys`.
struct Splits {
  int first, keys, count;
};

__device__ inline Splits SplitKeys(const Plan& plan, const Sequence& s) {
  if (!s.is_valid || s.length == 0) return {0, 1, 1};
  const int first = max(0, s.length - s.new_tokens - plan.window + 1), span = s.length - first;
  if (s.new_tokens > plan.decode_tokens || span < kWholeKeys) return {first, span, 1};
  const int splits = min((span + kSplitKeys / 2) / kSplitKeys, plan.max_splits);
  const int keys = ((span - 1) / splits / kSplitUnit + 1) * kSplitUnit;
  return {first, keys, (span - 1) / keys + 1};
}

template <int kRows>
__device__ inline int CountTiles(const Plan& plan, const Sequence& s, const Splits& splits) {
  if (!plan.all_rows && s.is_valid && s.new_tokens > plan.decode_tokens) return 0;
  return (s.new_tokens * plan.group + kRows - 1) / kRows * splits.count * plan.kv_heads;
}

// A CTA's view of all work tiles: for long and for other ones, where those of every seqs_per_entry sequences start. A
// warp searches every kStride-th entry of the table, the entries after the one it found, then that entry's sequences. A
// tile has kRows rows.
template <int kThreads, int kStride, int kRows>
class TileScheduler {
 public:
  static constexpr int kEntries = kWarpSize * kStride;

  // For all threads together. -1: num_seqs or query_start_loc is wrong.
  __device__ int Count(const Params& p, const Plan& plan) {
    const int thread = threadIdx.x, lane = thread % kWarpSize, warp = thread / kWarpSize;
    const int count = p.num_seqs[0], start = p.query_start_loc[0], seqs = static_cast<int>(p.seqs);
    // No load here waits for the result of another one, nor in the first round of the loop.
    bool wrong = (count < 0) | (count > seqs) | (start != 0);
    int totals[kKinds] = {};
    for (int first = 0; first < kEntries; first += kThreads) {
      const int entry = first + thread;
      int tiles[kKinds] = {};
      for (int i = 0; i < plan.seqs_per_entry; ++i) {
        const int seq = entry * plan.seqs_per_entry + i;
        if (seq >= seqs) break;
        const Sequence s = ReadSequence(p, seq);
        if (seq >= count) break;
        if (seq == count - 1) rows_ = s.row + s.new_tokens;
        wrong = wrong || s.new_tokens < 0 || s.row < 0 || s.row + int64_t{s.new_tokens} > p.tokens;
        if (wrong) continue;
        const Splits splits = SplitKeys(plan, s);
        const int of_sequence = CountTiles<kRows>(plan, s, splits);
        tiles[0] += IsLong(splits) ? of_sequence : 0;
        tiles[1] += IsLong(splits) ? 0 : of_sequence;
      }
      const int sums[kKinds] = {WarpInclusiveSum(tiles[0], threadIdx.x % kWarpSize),
                                WarpInclusiveSum(tiles[1], threadIdx.x % kWarpSize)};
      if (lane == kWarpSize - 1) warp_tiles_[0][warp] = sums[0], warp_tiles_[1][warp] = sums[1];
      __syncthreads();
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
        int start = totals[kind] + sums[kind] - tiles[kind];
        for (int w = 0; w < kThreads / kWarpSize; ++w) {
          if (w < warp) start += warp_tiles_[kind][w];
          totals[kind] += warp_tiles_[kind][w];
        }
        SetStart(kind, entry, start);
      }
      // The entries after the last sequence start at the end.
      if ((first + kThreads) * plan.seqs_per_entry >= seqs) {
        for (int rest = entry + kThreads; rest < kEntries; rest += kThreads) {
          SetStart(0, rest, INT_MAX), SetStart(1, rest, INT_MAX);
        }
        break;
      }
      __syncthreads();
    }
    if (thread == 0) long_tiles_ = totals[0];
    if (thread == 0 && count == 0) rows_ = 0;
    return __syncthreads_or(wrong) ? -1 : totals[0] + totals[1];
  }

  // Rows of the query that are some sequence's, if the count is right.
  __device__ int Rows() const { return rows_; }

  // For all lanes of a warp together. Precondition: index is below the count.
  __device__ WorkTile Find(const Params& p, const Plan& plan, int index) const {
    // The last entry that starts at or before the work tile, and the sequence in it.
    const int lane = Lane(), kind = index >= long_tiles_;
    int offset = index - kind * long_tiles_;
    const int* starts = starts_[kind];
    const int first_entry = (__popc(__ballot_sync(kAllLanes, starts[lane * kStride] <= offset)) - 1) * kStride;
    const bool is_before = lane < kStride && starts[first_entry + lane] <= offset;
    const int entry = first_entry + __popc(__ballot_sync(kAllLanes, is_before)) - 1;
    offset -= starts[entry];
    int seq = entry * plan.seqs_per_entry;
    if (plan.seqs_per_entry > 1) seq = FindSequence(p, plan, kind, seq, offset);
    const Sequence s = ReadSequence(p, seq);
    const Splits splits = SplitKeys(plan, s);

    WorkTile work;
    const int of_head = plan.kv_head_divider.Quotient(offset);
    const int tile = of_head < splits.count ? 0 : of_head / splits.count;
    work.seq = seq;
    work.is_valid = s.is_valid;
    work.kv_head = plan.kv_head_divider.Remainder(offset, of_head);
    work.split = of_head - tile * splits.count;
    work.splits = splits.count;
    work.query_row = s.row;
    work.position = s.is_valid ? s.length - s.new_tokens : 0;
    work.row = tile * kRows;
    work.rows = min(kRows, s.new_tokens * plan.group - work.row);
    // Keys that no row of the tile sees are left out in units, so that each warp has the same ones in any tile.
    const int first = work.position + plan.group_divider.Quotient(work.row);
    const int last = work.position + plan.group_divider.Quotient(work.row + work.rows - 1);
    const int begin = splits.first + splits.keys * work.split;
    work.begin = begin + (max(begin, first - plan.window + 1) - begin) / kKeyUnit * kKeyUnit;
    work.end = static_cast<int>(min(int64_t{begin} + splits.keys, int64_t{last} + 1));
    if (!s.is_valid) work.end = work.begin;
    return work;
  }

 private:
  static constexpr int kKinds = 2;  // long, others

  // The sequence, from `seq` on, that has work tile `offset`; offset becomes the work tile's number in it. Each lane
  // looks at one sequence. What lanes read after the last sequence of the batch changes nothing.
  __device__ int FindSequence(const Params& p, const Plan& plan, int kind, int seq, int& offset) const {
    const int lane = Lane();
    for (;; seq += kWarpSize) {
      int tiles = 0;
      if (seq + lane < static_cast<int>(p.seqs)) {
        const Sequence s = ReadSequence(p, seq + lane);
        const Splits splits = SplitKeys(plan, s);
        if (IsLong(splits) == (kind == 0)) tiles = CountTiles<kRows>(plan, s, splits);
      }
      const int end = WarpInclusiveSum(tiles, lane);
      const unsigned ends_after = __ballot_sync(kAllLanes, end > offset);
      const int found = ends_after == 0 ? kWarpSize - 1 : __ffs(ends_after) - 1;
      offset -= __shfl_sync(kAllLanes, ends_after == 0 ? end : end - tiles, found);
      if (ends_after != 0) return seq + found;
    }
  }

  __device__ static bool IsLong(const Splits& splits) { return splits.keys > kLongKeys; }

  // The threads may be more than the entries that are left.
  __device__ void SetStart(int kind, int entry, int start) {
    if (entry < kEntries) starts_[kind][entry] = start;
  }

  // Aligned, because the compiler reads 16 bytes at a time: else the table's last word, which is written meanwhile,
  // too.
  alignas(16) int warp_tiles_[kKinds][kThreads / kWarpSize];
  alignas(16) int starts_[kKinds][kEntries];
  int long_tiles_, rows_;
};

}  // namespace paged_attention::decode
