// Writes a token's keys and values into a paged cache on the host.
#pragma once

#include <algorithm>
#include <cmath>

#include "_kv_cache/kv_store.h"
#include "pyxla/host/dtype.h"

namespace pyxla {

/** A float8 (e4m3fn) in the cache: its bits. */
struct CachedFloat8 {
  uint8_t bits;
};

/** Round to nearest even, saturating at +-448; a NaN stays a NaN. */
inline CachedFloat8 ToFloat8(float value) {
  constexpr float kLargest = 448.0f, kSmallestNormal = 0.015625f;  // 2^-6
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return {static_cast<uint8_t>(sign | 0x7f)};
  const float magnitude = std::min(std::fabs(value), kLargest);
  // A subnormal is a multiple of 2^-9; the 8th multiple is the smallest normal number, also as bits.
  if (magnitude < kSmallestNormal) {
    return {static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 512.0f)))};
  }
  // Round at bit 20, where three bits of the mantissa remain; a carry into the exponent is right.
  const uint32_t bits = FloatToBits(magnitude);
  const uint32_t rounded = (bits + 0x7ffff + ((bits >> 20) & 1)) >> 20;
  return {static_cast<uint8_t>(sign | (rounded - ((127 - 7) << 3)))};
}

/** The heads of a token, of keys or of values, in the cache's own dtype. */
template <typename T>
void StoreHeads(const T* from, T* to, const float*, int64_t heads, int64_t d) {
  std::copy_n(from, heads * d, to);
}

/** The same in float8, each head divided by its scale; no scales: ones. */
template <typename T>
void StoreHeads(const T* from, CachedFloat8* to, const float* scales, int64_t heads, int64_t d) {
  for (int64_t head = 0; head < heads; ++head) {
    const float scale = scales == nullptr ? 1.0f : scales[head];
    for (int64_t i = head * d; i < (head + 1) * d; ++i) to[i] = ToFloat8(ToFloat(from[i]) / scale);
  }
}

/** A token's keys and values, [kv_heads, d] each, at its slot of a cache of C. */
template <typename T, typename C>
void StoreToken(const T* key, const T* value, C* cache, int64_t slot, int64_t d, const KvStoreParams& p) {
  const int64_t row = p.kv_heads * d;
  C* to = cache + slot * row;
  StoreHeads(key, to, p.kv_scales, p.kv_heads, d);
  StoreHeads(value, to + p.slots * row, p.kv_scales == nullptr ? nullptr : p.kv_scales + p.kv_heads, p.kv_heads, d);
}

}  // namespace pyxla
