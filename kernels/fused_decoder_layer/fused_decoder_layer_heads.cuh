// The last product of fused_decoder_layer_rotary: its columns are heads of queries, keys and values, which the thread that has
// them rotates and stores. Its tiles have, of several heads, 16 elements of the first half and the 16 of the second
// half that they are rotated with: a thread has both of a pair, and the same pairs of each head.
#pragma once

#include "fused_decoder_layer/fused_decoder_layer_block.cuh"

namespace fused_decoder_layer {

// The angles of two neighbouring pairs.
struct Angles {
  float2 cos, sin;
};

template <typename C>
__device__ inline float2 TwoOf(const void* base, int64_t at) {
  if constexpr (std::is_same_v<C, float>)
    return *reinterpret_cast<const float2*>(static_cast<const float*>(base) + at);
  else
    return LoadTwo<C>(base, at);
}

// NaN, where the position is out of range.
template <typename T>
__device__ inline Angles AnglesAt(const HeadsParams& p, int64_t position, int pair) {
  if (position < 0 || position >= p.max_position) return {{nanf(""), nanf("")}, {nanf(""), nanf("")}};
  const int64_t at = position * p.d + pair;
  if (p.table_dtype == pyxla::FloatType::kFloat32)
    return {TwoOf<float>(p.cos_sin_cache, at), TwoOf<float>(p.cos_sin_cache, at + p.d / 2)};
  return {TwoOf<T>(p.cos_sin_cache, at), TwoOf<T>(p.cos_sin_cache, at + p.d / 2)};
}

// What a thread does with a tile: where the pairs of its row and each head go, and by which angles they are rotated.
template <typename T>
struct PairsOfHeads {
  static constexpr int kHeads = QueryShape::kHeads, kGroups = kUnitRows / 8;
  T* to[kHeads];  // null: nowhere
  Angles angles[kGroups];
  int values;  // the first head of values, from the first of these

  __device__ PairsOfHeads(const DeviceParams& p, int tile) {
    const HeadsParams& h = p.heads;
    const Place place;
    const int heads = static_cast<int>(h.heads), kv_heads = static_cast<int>(h.kv_heads), row = place.own_row;
    const int first = tile / p.qkv.units * kHeads, pair = tile % p.qkv.units * kUnitRows + place.column;
    const bool is_token = row < p.tokens;
    const int64_t position = is_token ? h.positions[row] : 0, slot = is_token ? h.slot_mapping[row] : -1;
    values = heads + kv_heads - first;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) angles[group] = AnglesAt<T>(h, position, pair + 8 * group);
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const int head = first + j, kv_head = head - heads;
      if (kv_head < 0) {
        to[j] = is_token ? static_cast<T*>(p.out) + (int64_t{row} * heads + head) * h.d + pair : nullptr;
      } else {
        // Heads of values begin kv_heads behind those of keys, in the second half of the cache.
        const int64_t at = ((kv_head < kv_heads ? slot : h.slots + slot - 1) * kv_heads + kv_head) * h.d + pair;
        const bool is_there = slot >= 0 && slot < h.slots && kv_head < 2 * kv_heads;
        to[j] = is_there ? static_cast<T*>(h.cache) + at : nullptr;
      }
    }
  }
};

// `pairs` are the first tile's, asked for before: nothing hides the end of the last product.
template <typename T>
__device__ inline void ProjectHeads(const DeviceParams& p, const Ring& ring, Shared& shared, uint32_t& stage,
                                    uint32_t& turn, PairsOfHeads<T> pairs) {
  constexpr int kColumns = QueryShape::kRows / 8;
  const Place place;
  const int half_d = static_cast<int>(p.heads.d) / 2;
  bool is_first = true;
  Multiply<T, QueryShape>(p.qkv, ring, stage, [&](int tile, const float (&c)[kColumns][4], auto&) {
    if (!is_first) pairs = PairsOfHeads<T>(p, tile);
    float2 sums[kColumns];
    AddPeers(c, sums, shared, turn);
    if (is_first) bar_sync(kScalesAreThere, kWaitForScales);
    is_first = false;
    const float scale = shared.scale[place.own_row];
#pragma unroll
    for (int j = 0; j < pairs.kHeads; ++j) {
#pragma unroll
      for (int group = 0; group < pairs.kGroups; ++group) {
        const auto [cos, sin] = pairs.angles[group];
        const int first = 2 * j * pairs.kGroups + group;
        const float2 x = Times(sums[first], scale), y = Times(sums[first + pairs.kGroups], scale);
        const bool is_value = j >= pairs.values;
        const float2 a = is_value ? x : float2{x.x * cos.x - y.x * sin.x, x.y * cos.y - y.y * sin.y};
        const float2 b = is_value ? y : float2{y.x * cos.x + x.x * sin.x, y.y * cos.y + x.y * sin.y};
        if (pairs.to[j] == nullptr) continue;
        StoreTwo<T>(pairs.to[j], 8 * group, a.x, a.y);
        StoreTwo<T>(pairs.to[j], 8 * group + half_d, b.x, b.y);
      }
    }
  });
}

}  // namespace fused_decoder_layer
