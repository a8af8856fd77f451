// The rows of paged_attention.h on XLA's threads. One .cc file of an op includes it, and calls PagedAttentionOnHost.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "_paged_attention/paged_attention.h"
#include "pyxla/host/dtype.h"

namespace pyxla::paged_attention_host {

using Params = PagedAttentionParams;
using Dtype = PagedAttentionDtype;

// Eight bits: sign, four of exponent, three of mantissa; 0x7f is NaN, and there is no infinity.
struct F8E4M3 {
  uint8_t bits;
};

// So many rows share the keys and values that were loaded and converted for them.
constexpr int kTileRows = 96;
constexpr int kTileKeys = 128;
// Sequences of at most kSplitRows rows (decode steps) are cut into ranges of kSplitKeys keys, which threads share.
constexpr int64_t kSplitRows = 4 * kTileRows;
constexpr int64_t kSplitKeys = 1024;
static_assert(kSplitKeys % kTileKeys == 0, "a range is whole tiles of keys");

// Some rows of one sequence and kv head against a range of its keys. Row = new token * group + head of the group.
struct Tile {
  int64_t seq, kv_head, group;
  int64_t first_token, first_position;  // of the sequence's new tokens: row in query, position in the context
  int64_t first_row;
  int rows;
  int64_t key_begin, key_end;
  int64_t share;  // where the range's share of the result goes; kWhole: the range is all that the rows see

  static constexpr int64_t kWhole = -1;

  int64_t Position(int row) const { return first_position + (first_row + row) / group; }
  int64_t Head(int row) const { return kv_head * group + (first_row + row) % group; }
  // Of a row in lse; times head_dim in query and out.
  int64_t Index(const Params& p, int row) const {
    return (first_token + (first_row + row) / group) * p.heads + Head(row);
  }
};

// The softmax of a row after its last key: the sink joins, and the logarithm of the sum is stored. Returns the factor
// that makes the sum of weight * value the result.
inline float FinishSoftmax(const Params& p, const Tile& tile, int row, float max, float sum) {
  float share = 1;
  if (p.sinks != nullptr) {
    const float sink = p.sinks[tile.Head(row)], both = std::max(max, sink);
    const float shift = both == -INFINITY ? 0 : both;
    share = std::exp(max - shift);
    sum = sum * share + std::exp(sink - shift);
    max = both;
  }
  if (p.lse != nullptr) p.lse[tile.Index(p, row)] = max + std::log(sum);
  return share / sum;
}

// A share holds, for each row, the largest logit, the sum of the weights and the sum of weight * value.
inline int64_t ShareFloats(const Params& p, const Tile& tile) { return tile.rows * (p.head_dim + 2); }

// Shares of one tile, one per range of keys, to be added up.
struct Merge {
  Tile tile;
  int64_t ranges, stride;
};

// What a thread keeps of its tile; all of it fits into the second-level cache.
struct Scratch {
  static constexpr int kMaxRows = 8, kMaxLanes = 16, kMaxPanel = 32, kAlignment = 64;
  // One row more than there are keys: panels 4096 bytes apart would meet in the same cache lines.
  static constexpr int kValueRows = kTileKeys + 1;
  float *logits, *max, *sum, *query, *keys, *values, *out;

  static size_t Floats(int64_t head_dim) {
    const int64_t width = (head_dim + kMaxPanel - 1) / kMaxPanel * kMaxPanel;
    return kMaxRows * kTileKeys + kTileRows * (1 + kMaxLanes + head_dim + width) + kTileKeys * head_dim +
           kValueRows * width;
  }
  Scratch(float* buffer, int64_t head_dim, int64_t width) {
    logits = buffer;
    max = logits + kMaxRows * kTileKeys;
    sum = max + kTileRows;
    query = sum + kTileRows * kMaxLanes;
    keys = query + kTileRows * head_dim;
    out = keys + kTileKeys * head_dim;
    values = out + kTileRows * width;
  }
};

// Where keys lie in the cache, for kv head 0: this tile's and the next one's, which is fetched ahead. What lies past
// `key_end` repeats the last key, so that vectors of keys can be loaded whole.
inline void CacheOffsets(const Params& p, const Tile& tile, int64_t key, int64_t* offsets) {
  const int32_t* table = p.block_tables + tile.seq * p.max_blocks;
  for (int i = 0; i < 2 * kTileKeys; ++i) {
    const int64_t position = std::min(key + i, tile.key_end - 1);
    const int64_t slot = table[position / p.block_size] * p.block_size + position % p.block_size;
    offsets[i] = slot * p.kv_heads * p.head_dim;
  }
}

}  // namespace pyxla::paged_attention_host

#define PA_NAMESPACE baseline
#define PA_TARGET
#define PA_LANES 4
#include "_paged_attention/paged_attention_tile.h"

#if defined(__x86_64__)
#define PA_NAMESPACE avx2
#define PA_TARGET __attribute__((target("avx2,fma,f16c")))
#define PA_LANES 8
#include "_paged_attention/paged_attention_tile.h"

#define PA_NAMESPACE avx512
#define PA_TARGET __attribute__((target("avx512f,avx2,fma,f16c")))
#define PA_LANES 16
#include "_paged_attention/paged_attention_tile.h"
#endif

namespace pyxla::paged_attention_host {

using AttendFunction = void (*)(const Params&, const Tile&, float* buffer, float* shares);

template <typename T, typename Cache>
AttendFunction SelectInstructionSet(int64_t head_dim) {
#if defined(__x86_64__)
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && head_dim % 16 == 0) return avx512::AttendTile<T, Cache>;
  if (has_avx2) return avx2::AttendTile<T, Cache>;
#endif
  return baseline::AttendTile<T, Cache>;
}

// Calls body with a value of the query's type.
template <typename Body>
auto DispatchDtype(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kBFloat16: return body(BF16());
    case Dtype::kFloat16: return body(F16());
    default: return body(float());
  }
}

inline AttendFunction Select(const Params& p) {
  return DispatchDtype(p.dtype, [&](auto value) {
    using T = decltype(value);
    if (p.kv_dtype == Dtype::kFloat8E4M3) return SelectInstructionSet<T, F8E4M3>(p.head_dim);
    return SelectInstructionSet<T, T>(p.head_dim);
  });
}

// How the work is cut depends on each sequence alone: so does the order of a row's additions.
struct Plan {
  std::vector<Tile> tiles;
  std::vector<std::pair<int64_t, int64_t>> order;  // minus the tile's cost, the tile
  std::vector<Merge> merges;
  int64_t share_floats = 0;

  explicit Plan(const Params& p) {
    for (int64_t seq = 0; seq < p.num_seqs[0]; ++seq) AddSequence(p, seq);
    // The longest tiles first, so that the threads end together; equal ones as they lie in the cache.
    for (size_t i = 0; i < tiles.size(); ++i) {
      order.emplace_back(-tiles[i].rows * (tiles[i].key_end - tiles[i].key_begin), i);
    }
    std::sort(order.begin(), order.end());
  }

  void AddSequence(const Params& p, int64_t seq) {
    Tile tile = {};
    tile.seq = seq;
    tile.group = p.heads / p.kv_heads;
    tile.first_token = p.query_start_loc[seq];
    const int64_t tokens = p.query_start_loc[seq + 1] - tile.first_token;
    tile.first_position = p.context_lens[seq] - tokens;
    const int64_t rows = tokens * tile.group;
    for (; tile.first_row < rows; tile.first_row += kTileRows) {
      tile.rows = static_cast<int>(std::min<int64_t>(kTileRows, rows - tile.first_row));
      const int64_t begin = std::max<int64_t>(0, tile.Position(0) - p.window + 1);
      const int64_t end = tile.Position(tile.rows - 1) + 1;
      AddRanges(p, tile, begin, end, rows <= kSplitRows ? kSplitKeys : end - begin);
    }
  }

  // One tile per range and kv head; heads that lie side by side in the cache come one after the other.
  void AddRanges(const Params& p, Tile tile, int64_t begin, int64_t end, int64_t range) {
    const bool is_whole = end - begin <= range;
    const int64_t first_share = share_floats, stride = p.kv_heads * ShareFloats(p, tile);
    for (tile.key_begin = begin; tile.key_begin < end; tile.key_begin += range) {
      tile.key_end = std::min(end, tile.key_begin + range);
      for (tile.kv_head = 0; tile.kv_head < p.kv_heads; ++tile.kv_head) {
        tile.share = is_whole ? Tile::kWhole : share_floats;
        if (!is_whole) share_floats += ShareFloats(p, tile);
        tiles.push_back(tile);
      }
    }
    for (tile.kv_head = 0; !is_whole && tile.kv_head < p.kv_heads; ++tile.kv_head) {
      tile.share = first_share + tile.kv_head * ShareFloats(p, tile);
      merges.push_back({tile, (share_floats - first_share) / stride, stride});
    }
  }
};

// The shares of a row relative to the largest logit of all, in the order of their keys.
template <typename T>
void MergeShares(const Params& p, const Merge& merge, const float* shares) {
  const int64_t d = p.head_dim;
  float out[kPagedAttentionMaxHeadDim];
  for (int row = 0; row < merge.tile.rows; ++row) {
    const float* first = shares + merge.tile.share + row * (d + 2);
    float max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < merge.ranges; ++i) max = std::max(max, first[i * merge.stride]);
    std::fill_n(out, d, 0.0f);
    for (int64_t i = 0; i < merge.ranges; ++i) {
      const float* share = first + i * merge.stride;
      const float weight = std::exp(share[0] - (max == -INFINITY ? 0 : max));
      sum += weight * share[1];
      for (int64_t j = 0; j < d; ++j) out[j] += weight * share[2 + j];
    }
    const float factor = FinishSoftmax(p, merge.tile, row, max, sum);
    T* to = static_cast<T*>(p.out) + merge.tile.Index(p, row) * d;
    for (int64_t j = 0; j < d; ++j) to[j] = FromFloat<T>(out[j] * factor);
  }
}

inline float* AlignedBuffer(int64_t head_dim) {
  constexpr size_t kSlack = Scratch::kAlignment / sizeof(float);
  thread_local std::vector<float> memory;
  if (memory.size() < Scratch::Floats(head_dim) + kSlack) memory.resize(Scratch::Floats(head_dim) + kSlack);
  void* buffer = memory.data();
  size_t space = memory.size() * sizeof(float);
  return static_cast<float*>(std::align(Scratch::kAlignment, Scratch::Floats(head_dim) * sizeof(float), buffer, space));
}

}  // namespace pyxla::paged_attention_host

namespace pyxla {

/** Precondition: lengths and block ids are in range. A row's result depends bit for bit on its own sequence alone, not
 * on the other sequences of the batch nor on the number of threads. */
inline void PagedAttentionOnHost(const PagedAttentionParams& p, const PagedAttentionParallelFor& parallel_for) {
  using namespace paged_attention_host;
  const Plan plan(p);
  const auto shares = std::make_unique_for_overwrite<float[]>(plan.share_floats);
  const AttendFunction attend = Select(p);
  parallel_for(plan.tiles.size(), 1, [&](int64_t begin, int64_t end) {
    float* buffer = AlignedBuffer(p.head_dim);
    for (int64_t i = begin; i < end; ++i) attend(p, plan.tiles[plan.order[i].second], buffer, shares.get());
  });
  parallel_for(plan.merges.size(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      DispatchDtype(p.dtype, [&](auto value) { MergeShares<decltype(value)>(p, plan.merges[i], shares.get()); });
    }
  });

  // Rows past the last sequence are padding.
  const int64_t row_bytes = p.heads * p.head_dim * (p.dtype == Dtype::kFloat32 ? 4 : 2);
  const int64_t used = p.query_start_loc[p.num_seqs[0]];
  // Not memset, which may not get the null pointer of an empty array.
  char* out = static_cast<char*>(p.out);
  std::fill(out + used * row_bytes, out + p.tokens * row_bytes, 0);
  if (p.lse != nullptr) std::fill(p.lse + used * p.heads, p.lse + p.tokens * p.heads, -INFINITY);
}

}  // namespace pyxla
