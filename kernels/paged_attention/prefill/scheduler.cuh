// The prefill kernels' work, found on the device from the lengths.
//
// The rows of a sequence and kv head are its new tokens times the heads of the group: row r is head r % group of new
// token r / group. A tile is kRows of them, counted from the sequence's first new token, and is computed over KV tiles,
// counted from position 0: neither depends on the rest of the batch.
#pragma once

#include "paged_attention/sequences.cuh"

namespace paged_attention {
namespace prefill {

// Tiles that the shapes allow. A sequence that is not the decode kernel's has more than kDecodeRows rows.
inline int64_t MaxTiles(const Params& p, int rows_per_tile) {
  const int64_t rows = p.tokens * (p.heads / p.kv_heads), seqs = rows / (kDecodeRows + 1);
  return rows / rows_per_tile + (seqs < p.seqs ? seqs : p.seqs);
}

// What the device needs of the shapes, in 32 bits: a division of 64 bits is some hundred instructions.
struct Plan {
  Plan(const Params& p, int threads)
      : group(static_cast<int>(p.heads / p.kv_heads)),
        heads(static_cast<int>(p.heads)),
        kv_heads(static_cast<int>(p.kv_heads)),
        decode_tokens(static_cast<int>(DecodeTokens(p))),
        seqs_per_thread(static_cast<int>(CeilDiv(p.seqs, threads))) {}

  int group, heads, kv_heads;
  int decode_tokens;    // new tokens up to which a sequence is the decode kernel's
  int seqs_per_thread;  // of TileScheduler
};

struct Tile {
  int seq;
  int position;  // of the first row's token
  int token;     // of the first row, in the query
  int head;      // of the first row, within its group
  int rows;
  int key_begin, key_end;  // the positions that at least one row sees
};

// Whether every row sees every key of KV tile `t`.
template <int kKeys>
__device__ inline bool IsFull(const Params& p, const Tile& tile, int t) {
  return (t + 1) * kKeys <= tile.position + 1 && t * kKeys > tile.key_end - 1 - p.window;
}

// A CTA's view of all tiles, sequence by sequence. Each thread counts those of a range of sequences.
template <int kRows, int kThreads>
class TileScheduler {
 public:
  // For all threads together. None, if num_seqs or query_start_loc is wrong.
  __device__ int Count(const Params& p, const Plan& plan) {
    const int thread = threadIdx.x, lane = thread % kWarpSize, warp = thread / kWarpSize;
    const int count = p.num_seqs[0], range = plan.seqs_per_thread;
    bool wrong = count < 0 || count > p.seqs;
    int tiles = 0;
    if (!wrong) {
      wrong = p.query_start_loc[0] != 0 || p.query_start_loc[count] > p.tokens;
      for (int seq = thread * range; seq < min((thread + 1) * range, count); ++seq) {
        const Sequence s = ReadSequence(p, seq);
        // Not by the sign of new_tokens: a difference of wrong entries may not fit into 32 bits.
        wrong = wrong || p.query_start_loc[seq + 1] < s.row;
        tiles += Tiles(plan, s);
      }
    }
    const int sum = WarpInclusiveSum(tiles, lane);
    if (lane == kWarpSize - 1) warp_tiles_[warp] = sum;
    if (__syncthreads_or(wrong)) return 0;
    int before = 0, total = 0;
    for (int w = 0; w < kThreads / kWarpSize; ++w) {
      if (w < warp) before += warp_tiles_[w];
      total += warp_tiles_[w];
    }
    starts_[thread] = before + sum - tiles;
    __syncthreads();
    return total;
  }

  // For all lanes of a warp together. Precondition: index is below the count.
  __device__ Tile Find(const Params& p, const Plan& plan, int index) const {
    // The last range that starts at or before the tile, and the sequence in it.
    unsigned at_or_before = 0;
    for (int i = threadIdx.x % kWarpSize; i < kThreads; i += kWarpSize) at_or_before += starts_[i] <= index;
    const int thread = static_cast<int>(__reduce_add_sync(kAllLanes, at_or_before)) - 1;
    int seq = thread * plan.seqs_per_thread, left = index - starts_[thread];
    Sequence s = ReadSequence(p, seq);
    for (int tiles = Tiles(plan, s); left >= tiles; tiles = Tiles(plan, s)) {
      left -= tiles;
      s = ReadSequence(p, ++seq);
    }

    const int row = left * kRows, token = row / plan.group;
    Tile tile;
    tile.seq = seq;
    tile.position = s.length - s.new_tokens + token;
    tile.token = s.row + token;
    tile.head = row - token * plan.group;
    tile.rows = min(s.new_tokens * plan.group - row, kRows);
    tile.key_begin = static_cast<int>(max(static_cast<int64_t>(0), tile.position - p.window + 1));
    tile.key_end = tile.position + (tile.head + tile.rows - 1) / plan.group + 1;
    return tile;
  }

 private:
  __device__ static int Tiles(const Plan& plan, const Sequence& s) {
    if (!s.is_valid || s.new_tokens <= plan.decode_tokens) return 0;
    return (s.new_tokens * plan.group - 1) / kRows + 1;
  }

  int starts_[kThreads], warp_tiles_[kThreads / kWarpSize];
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

}  // namespace prefill
}  // namespace paged_attention
