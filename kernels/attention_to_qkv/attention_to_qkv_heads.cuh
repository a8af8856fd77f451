// The last product of attention_to_query: its columns are heads of queries, keys and values, which the thread that has
// them rotates and stores. Its tiles are units, 8 elements of a head's first half and the 8 of the second half that
// they are rotated with, so that a thread has both of a pair.
#pragma once

#include "attention_to_qkv/attention_to_qkv_block.cuh"

namespace attention_to_qkv {

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

template <typename T>
__device__ inline void ProjectHeads(const DeviceParams& p, const Ring& ring, Shared& shared, uint32_t& stage,
                                    uint32_t& turn) {
  constexpr int kColumns = QueryShape::kRows / 8, kUnits = kColumns / 4;  // units of half a tile
  const HeadsParams& h = p.heads;
  const Place place;
  int64_t position[2], slot[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = place.row + 8 * i;
    position[i] = row < p.tokens ? h.positions[row] : 0;
    slot[i] = row < p.tokens ? h.slot_mapping[row] : -1;
  }
  const int d = static_cast<int>(h.d), heads = static_cast<int>(h.heads), kv_heads = static_cast<int>(h.kv_heads);
  bool has_scales = false;
  Multiply<T, QueryShape>(p.qkv, ring, stage, [&](int tile, const float (&c)[kColumns][4], auto&) {
    const int first = (tile * 2 + blockIdx.x % 2) * kUnits;
    Angles angles[2][kUnits];
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        angles[i][unit] = AnglesAt<T>(h, position[i], (first + unit) % p.qkv.units * kUnitRows + place.column);
    }
    float half[kColumns / 2][4];
    AddPeers(c, half, shared, turn);
    if (!has_scales) Sync(kScalesAreThere, kWaitForScales);
    has_scales = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = place.row + 8 * i;
      if (row >= p.tokens) continue;
      const float scale = shared.scale[row];
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        const int head = (first + unit) / p.qkv.units, kv_head = head - heads;
        const bool is_query = kv_head < 0, is_value = kv_head >= kv_heads;
        if (kv_head >= 2 * kv_heads || (!is_query && (slot[i] < 0 || slot[i] >= h.slots))) continue;
        float2 a{half[2 * unit][2 * i] * scale, half[2 * unit][2 * i + 1] * scale};
        float2 b{half[2 * unit + 1][2 * i] * scale, half[2 * unit + 1][2 * i + 1] * scale};
        if (!is_value) {
          const auto [cos, sin] = angles[i][unit];
          const float2 x = a, y = b;
          a = {x.x * cos.x - y.x * sin.x, x.y * cos.y - y.y * sin.y};
          b = {y.x * cos.x + x.x * sin.x, y.y * cos.y + x.y * sin.y};
        }
        // Heads of values begin kv_heads behind those of keys, in the second half of the cache.
        const int64_t to =
            is_query ? int64_t{row} * heads + head : (is_value ? h.slots + slot[i] - 1 : slot[i]) * kv_heads + kv_head;
        const int64_t at = to * d + (first + unit) % p.qkv.units * kUnitRows + place.column;
        StoreTwo<T>(is_query ? p.out : h.cache, at, a.x, a.y);
        StoreTwo<T>(is_query ? p.out : h.cache, at + d / 2, b.x, b.y);
      }
    }
  });
}

}  // namespace attention_to_qkv
