// The decode kernel's work, found on the device from the lengths: work tiles of (tile of rows, kv head, split of keys).
//
// Work tiles are numbered sequence by sequence, those with long work tiles first, so that what is left at the end is
// short. Within a sequence the kv heads of a split are neighbours, because their keys are, then come the splits of a
// tile, then the tiles. How a sequence is cut depends on its own lengths and on shapes other than the batch's, so that
// a row's result does not depend on the rest of the batch.
#pragma once

#include <climits>

#include "paged_attention/decode/plan.cuh"

namespace paged_attention::decode {

// This thread's number, opaque to the compiler: else it would keep all that it computes from it in registers
// throughout, and run out of them.
__device__ inline int OpaqueThread() {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  __builtin_assume(0 <= thread && thread < 1024);
  return thread;
}

__device__ inline int Lane() { return OpaqueThread() % kWarpSize; }

__device__ inline int Warp() { return threadIdx.x / kWarpSize; }

// The end of a work tile's keys, and the range of keys that all of its tokens see.
struct KeyRange {
  int end, all_begin, all_end;
};

struct WorkTile {
  int seq, kv_head;
  int query_row, position;  // of the sequence's first new token
  int row, rows;            // of the sequence's new_tokens * group rows, token by token
  int begin;                // of the split's keys, without those that no row of the tile sees
  KeyRange keys;
  int split, splits;  // of the tile
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
__device__ inline int TilesOf(const Plan& plan, const Sequence& s, const Splits& splits) {
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

  // For all threads together.
  __device__ void CountTiles(const Params& p, const Plan& plan) {
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
        const int of_sequence = TilesOf<kRows>(plan, s, splits);
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
    wrong = __syncthreads_or(wrong);
    if (thread == 0) count_ = wrong ? -1 : totals[0] + totals[1];
    __syncthreads();
  }

  // Work tiles. -1: num_seqs or query_start_loc is wrong.
  __device__ int Count() const { return count_; }

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
    work.keys.end = static_cast<int>(min(int64_t{begin} + splits.keys, int64_t{last} + 1));
    if (!s.is_valid) work.keys.end = work.begin;
    work.keys.all_begin = last - plan.window + 1;
    work.keys.all_end = first + 1;
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
        if (IsLong(splits) == (kind == 0)) tiles = TilesOf<kRows>(plan, s, splits);
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
  int count_, long_tiles_, rows_;
};

}  // namespace paged_attention::decode
