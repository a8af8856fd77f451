// The qkv projection of fused_decoder_layer_rotary: its columns are heads of queries, keys and values, and the thread
// that has an element rotates and stores it. A tile has, of several heads, 16 elements of the first half and the 16 of
// the second half that they are rotated with: a thread has both elements of a pair, and the same pairs of each head.
#pragma once

#include "fused_decoder_layer/sm90/epilogue.cuh"

namespace fused_decoder_layer::sm90 {

// The angles of two neighbouring pairs.
struct Angles {
  float2 cos, sin;
};

template <typename C>
__device__ inline float2 LoadAnglePair(const void* base, int64_t at) {
  if constexpr (std::is_same_v<C, float>)
    return *reinterpret_cast<const float2*>(static_cast<const float*>(base) + at);
  else
    return LoadPair<C>(base, at);
}

// NaN, where the position is out of range.
template <typename T>
__device__ inline Angles LoadAngles(const RotaryAndCacheParams& p, int64_t position, int pair) {
  if (position < 0 || position >= p.max_position) return {{nanf(""), nanf("")}, {nanf(""), nanf("")}};
  const int64_t at = position * p.d + pair;
  if (p.table_dtype == pyxla::FloatType::kFloat32)
    return {LoadAnglePair<float>(p.cos_sin_cache, at), LoadAnglePair<float>(p.cos_sin_cache, at + p.d / 2)};
  return {LoadAnglePair<T>(p.cos_sin_cache, at), LoadAnglePair<T>(p.cos_sin_cache, at + p.d / 2)};
}

// Where the pairs of a thread's row and of each head of a tile go, and by which angles they are rotated.
template <typename T>
struct RotaryTile {
  static constexpr int kHeads = RotaryShape::kHeads, kGroups = kRotaryRows / 8;
  T* to[kHeads];  // null: nowhere
  Angles angles[kGroups];
  int first_value;  // the first head of values, counted from the tile's first head

  __device__ RotaryTile(const KernelParams& p, int tile) {
    const RotaryAndCacheParams& h = p.rotary;
    const ThreadPlace place;
    const int heads = static_cast<int>(h.heads), kv_heads = static_cast<int>(h.kv_heads), row = place.own_row;
    const int first = tile / p.qkv.tiles_per_head * kHeads;
    const int pair = tile % p.qkv.tiles_per_head * kRotaryRows + place.column;
    const bool is_token = row < p.tokens;
    const int64_t position = is_token ? h.positions[row] : 0, slot = is_token ? h.slot_mapping[row] : -1;
    first_value = heads + kv_heads - first;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) angles[group] = LoadAngles<T>(h, position, pair + 8 * group);
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const int head = first + j, kv_head = head - heads;
      if (kv_head < 0) {
        to[j] = is_token ? static_cast<T*>(p.out) + (int64_t{row} * heads + head) * h.d + pair : nullptr;
      } else {
        // The heads of values follow kv_heads of keys; they are in the second half of the cache.
        const int64_t at = ((kv_head < kv_heads ? slot : h.slots + slot - 1) * kv_heads + kv_head) * h.d + pair;
        const bool is_stored = slot >= 0 && slot < h.slots && kv_head < 2 * kv_heads;
        to[j] = is_stored ? static_cast<T*>(h.cache) + at : nullptr;
      }
    }
  }

  // Rotates queries and keys, scales all, and stores them.
  __device__ void Store(const float2 (&sums)[RotaryShape::kBlockN / 8], float scale, int half_d) const {
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const auto [cos, sin] = angles[group];
        const int first = 2 * j * kGroups + group;
        const float2 x = Scale(sums[first], scale), y = Scale(sums[first + kGroups], scale);
        const bool is_value = j >= first_value;
        const float2 a = is_value ? x : float2{x.x * cos.x - y.x * sin.x, x.y * cos.y - y.y * sin.y};
        const float2 b = is_value ? y : float2{y.x * cos.x + x.x * sin.x, y.y * cos.y + x.y * sin.y};
        if (to[j] == nullptr) continue;
        StorePair<T>(to[j], 8 * group, a.x, a.y);
        StorePair<T>(to[j], 8 * group + half_d, b.x, b.y);
      }
    }
  }
};

// `rotary` is the first tile's, loaded before: nothing hides the end of the last GEMM.
template <typename T>
__device__ inline void GemmQkvRotary(const KernelParams& p, const Pipeline& pipeline, SharedStorage& shared,
                                     uint32_t& stage, uint32_t& exchange, RotaryTile<T> rotary) {
  constexpr int kColumns = RotaryShape::kBlockN / 8;
  const ThreadPlace place;
  const int half_d = static_cast<int>(p.rotary.d) / 2;
  bool is_first = true;
  RunGemm<T, RotaryShape>(p.qkv, pipeline, stage, [&](int tile, const Accumulator<kColumns>& c, auto&) {
    if (!is_first) rotary = RotaryTile<T>(p, tile);
    float2 sums[kColumns];
    ReduceSplitK(c, sums, shared, exchange);
    if (is_first) bar_sync(kNormScalesReady, kNormScaleThreads);
    is_first = false;
    rotary.Store(sums, shared.norm_scale[place.own_row], half_d);
  });
}

}  // namespace fused_decoder_layer::sm90
