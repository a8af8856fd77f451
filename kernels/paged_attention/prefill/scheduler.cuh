// The prefill kernels' work, found on the device from the lengths.
//
// The rows of a sequence and kv head are its new tokens times the heads of the group: row r is head r % group of new
// token r / group. A tile is kRows of them, counted from the sequence's first new token, and is computed over KV tiles,
// counted from position 0. If a sequence has few tiles, their keys are divided into splits, so that more SMs compute
// them. Nothing of this depends on the rest of the batch.
#pragma once

#include <algorithm>

#include "paged_attention/workspace.cuh"

namespace paged_attention {
namespace prefill {

// Tiles that the shapes allow. A sequence that is not the decode kernel's has more than kDecodeRows rows.
inline int64_t MaxTiles(const Params& p, int rows_per_tile) {
  const int64_t rows = p.tokens * (p.heads / p.kv_heads), seqs = rows / (kDecodeRows + 1);
  return rows / rows_per_tile + (seqs < p.seqs ? seqs : p.seqs);
}

// Keys of a split, at least.
inline constexpr int kSplitKeys = 1024;
// Splits of a sequence's tiles, times kv heads, at most: what fills a large GPU.
inline constexpr int kSequenceTiles = 128;

// What the device needs of the shapes, in 32 bits: a division of 64 bits is some hundred instructions.
struct Plan {
  Plan(const Params& p, int threads)
      : group(static_cast<int>(p.heads / p.kv_heads)),
        heads(static_cast<int>(p.heads)),
        kv_heads(static_cast<int>(p.kv_heads)),
        decode_tokens(static_cast<int>(DecodeTokens(p))),
        seqs_per_thread(static_cast<int>(CeilDiv(p.seqs, threads))),
        most_splits(static_cast<int>(std::max(int64_t{1}, kSequenceTiles / p.kv_heads))) {}

  int group, heads, kv_heads;
  int decode_tokens;    // new tokens up to which a sequence is the decode kernel's
  int seqs_per_thread;  // of TileScheduler
  int most_splits;      // of a sequence with one tile
};

struct Tile {
  int seq;
  int position;  // of the first row's token
  int token;     // of the first row, in the query
  int head;      // of the first row, within its group
  int rows, last_position;
  int key_begin, key_end;  // the positions that at least one row sees, of the split
  int split, splits;
  int counter;  // the number of its counters, one for each kv head
};

// Whether every row sees every key of KV tile `t`.
template <int kKeys>
__device__ inline bool IsFull(const Params& p, const Tile& tile, int t) {
  return (t + 1) * kKeys <= tile.position + 1 && t * kKeys > tile.last_position - p.window;
}

// A CTA's view of all splits of tiles, sequence by sequence. Each thread counts those of a range of sequences. Splits
// consist of whole KV tiles of kKeys; 0: each tile is one split.
template <int kRows, int kThreads, int kKeys = 0>
class TileScheduler {
 public:
  // For all threads together. None, if num_seqs or query_start_loc is wrong.
  __device__ int Count(const Params& p, const Plan& plan) {
    const int thread = threadIdx.x, lane = thread % kWarpSize, warp = thread / kWarpSize;
    const int count = p.num_seqs[0], range = plan.seqs_per_thread;
    bool wrong = count < 0 || count > p.seqs;
    int splits = 0, rows = 0;
    if (!wrong) {
      wrong = p.query_start_loc[0] != 0 || p.query_start_loc[count] > p.tokens;
      for (int seq = thread * range; seq < min((thread + 1) * range, count); ++seq) {
        const Sequence s = ReadSequence(p, seq);
        // Not by the sign of new_tokens: a difference of wrong entries may not fit into 32 bits.
        wrong = wrong || p.query_start_loc[seq + 1] < s.row;
        splits += AllSplits(p, plan, s);
        if (MostSplits(plan, s) > 1) rows = max(rows, min(s.new_tokens * plan.group, kRows));
      }
    }
    const int sum = WarpInclusiveSum(splits, lane);
    if (lane == kWarpSize - 1) warp_splits_[warp] = sum;
    if constexpr (kKeys > 0) {
      rows = static_cast<int>(__reduce_max_sync(kAllLanes, static_cast<unsigned>(rows)));
      if (lane == 0) warp_rows_[warp] = rows;
    }
    if (__syncthreads_or(wrong)) return 0;
    int before = 0, total = 0;
    for (int w = 0; w < kThreads / kWarpSize; ++w) {
      if (w < warp) before += warp_splits_[w];
      total += warp_splits_[w];
    }
    starts_[thread] = before + sum - splits;
    __syncthreads();
    return total;
  }

  // Of the tiles whose keys may be divided, the most rows, or 1; after Count.
  __device__ int MostRows() const {
    int rows = 1;
    for (int w = 0; w < kThreads / kWarpSize; ++w) rows = max(rows, warp_rows_[w]);
    return rows;
  }

  // For all lanes of a warp together. Precondition: index is below the count.
  __device__ Tile Find(const Params& p, const Plan& plan, int index) const {
    // The last range that starts at or before the split, and the sequence in it.
    unsigned at_or_before = 0;
    for (int i = threadIdx.x % kWarpSize; i < kThreads; i += kWarpSize) at_or_before += starts_[i] <= index;
    const int thread = static_cast<int>(__reduce_add_sync(kAllLanes, at_or_before)) - 1;
    int seq = thread * plan.seqs_per_thread, left = index - starts_[thread];
    Sequence s = ReadSequence(p, seq);
    for (int splits = AllSplits(p, plan, s); left >= splits; splits = AllSplits(p, plan, s)) {
      left -= splits;
      s = ReadSequence(p, ++seq);
    }
    const int most = MostSplits(plan, s);
    int number = most > 1 ? 0 : left;
    Tile tile = FindTile(p, plan, s, number);
    if (most > 1) {
      for (; left >= tile.splits; tile = FindTile(p, plan, s, ++number)) left -= tile.splits;
    } else {
      left = 0;
    }
    tile.seq = seq;
    tile.counter = s.row * plan.group / kRows + seq + number;
    tile.split = left;
    if constexpr (kKeys > 0) {
      const int first = tile.key_begin / kKeys, kv_tiles = (tile.key_end - 1) / kKeys + 1 - first;
      tile.key_begin = max(tile.key_begin, (first + kv_tiles * left / tile.splits) * kKeys);
      tile.key_end = min(tile.key_end, (first + kv_tiles * (left + 1) / tile.splits) * kKeys);
    }
    return tile;
  }

 private:
  // Tile `number` of a sequence, with all keys.
  __device__ static Tile FindTile(const Params& p, const Plan& plan, const Sequence& s, int number) {
    const int row = number * kRows, token = row / plan.group;
    Tile tile = {};
    tile.position = s.length - s.new_tokens + token;
    tile.token = s.row + token;
    tile.head = row - token * plan.group;
    tile.rows = min(s.new_tokens * plan.group - row, kRows);
    tile.last_position = tile.position + (tile.head + tile.rows - 1) / plan.group;
    tile.key_begin = static_cast<int>(max(static_cast<int64_t>(0), tile.position - p.window + 1));
    tile.key_end = tile.last_position + 1;
    tile.splits = max(1, min(MostSplits(plan, s), (tile.key_end - tile.key_begin) / kSplitKeys));
    return tile;
  }

  // Of one tile of a sequence.
  __device__ static int MostSplits(const Plan& plan, const Sequence& s) {
    const int tiles = Tiles(plan, s);
    return kKeys == 0 || tiles == 0 || s.length < 2 * kSplitKeys ? 1 : plan.most_splits / tiles;
  }

  __device__ static int AllSplits(const Params& p, const Plan& plan, const Sequence& s) {
    const int tiles = Tiles(plan, s);
    if (MostSplits(plan, s) <= 1) return tiles;
    int splits = 0;
    for (int number = 0; number < tiles; ++number) splits += FindTile(p, plan, s, number).splits;
    return splits;
  }

  __device__ static int Tiles(const Plan& plan, const Sequence& s) {
    if (!s.is_valid || s.new_tokens <= plan.decode_tokens) return 0;
    return (s.new_tokens * plan.group - 1) / kRows + 1;
  }

  int starts_[kThreads], warp_splits_[kThreads / kWarpSize], warp_rows_[kThreads / kWarpSize];
};

// One row of a tile. Rows after the tile's last one repeat it and are not stored.
struct Row {
  bool exists;
  int position, head;
  int64_t index;  // among all rows of the output: token * heads + head
};

__device__ inline Row FindRow(const Plan& plan, const Tile& tile, int kv_head, int index) {
  const int row = tile.head + min(index, tile.rows - 1), token = row / plan.group;
  const int head = kv_head * plan.group + row - token * plan.group;
  return {index < tile.rows, tile.position + token, head, int64_t{tile.token + token} * plan.heads + head};
}

// Rows of a tile whose keys may be divided, at most.
inline constexpr int kMostRows = 192;
// Rows for the results of splits, at most.
inline constexpr int kSlotRows = 4 * kSequenceTiles * kLeastRows;
static_assert(kSlotRows / kMostRows >= 2 * kSequenceTiles, "the splits of a tile never wait for one another");

// Splits of a tile that the shapes allow.
inline int64_t MaxSplits(const Params& p) {
  const int64_t splits = p.max_blocks * p.block_size / kSplitKeys, most = kSequenceTiles / p.kv_heads;
  return std::max(int64_t{1}, std::min(splits, most));
}

inline int64_t SlotRows(const Params& p) {
  const int64_t splits = MaxSplits(p), rows = MaxTiles(p, kLeastRows) * kMostRows * p.kv_heads * splits;
  return splits == 1 ? 0 : std::min<int64_t>(rows, kSlotRows);
}

// The prefill kernel's part of the workspace.
struct Workspace {
  explicit Workspace(const Params& p)
      : counters(static_cast<int*>(p.workspace)),
        next(reinterpret_cast<unsigned*>(counters + PrefillCounters(p) - 1)),
        m_l(reinterpret_cast<float2*>(static_cast<char*>(p.workspace) + CounterBytes(p))),
        o(reinterpret_cast<float*>(m_l + SlotRows(p))),
        rows(static_cast<int>(SlotRows(p))) {}

  __device__ int* Counter(const Plan& plan, const Tile& tile, int kv_head) const {
    return counters + tile.counter * plan.kv_heads + kv_head;
  }

  int* counters;
  unsigned* next;
  float2* m_l;  // [rows]
  float* o;     // [rows][d]
  int rows;     // of all slots
};

}  // namespace prefill
}  // namespace paged_attention
