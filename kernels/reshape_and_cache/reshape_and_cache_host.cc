#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/dtype.h"
#include "reshape_and_cache/reshape_and_cache.h"

namespace reshape_and_cache {
namespace {

struct F8E4M3 {
  uint8_t bits;
};

// Round to nearest even, saturating at +-448; a NaN stays a NaN.
F8E4M3 ToFloat8(float value) {
  constexpr float kLargest = 448.0f, kSmallestNormal = 0.015625f;  // 2^-6
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return {static_cast<uint8_t>(sign | 0x7f)};
  const float magnitude = std::min(std::fabs(value), kLargest);
  // A subnormal is a multiple of 2^-9; the 8th multiple is the smallest normal number, also as bits.
  if (magnitude < kSmallestNormal) {
    return {static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 512.0f)))};
  }
  // Round at bit 20, where three bits of the mantissa remain; a carry into the exponent is right.
  const uint32_t bits = pyxla::FloatToBits(magnitude);
  const uint32_t rounded = (bits + 0x7ffff + ((bits >> 20) & 1)) >> 20;
  return {static_cast<uint8_t>(sign | (rounded - ((127 - 7) << 3)))};
}

template <typename T>
void StoreRow(const T* from, T* to, const float*, const Params& p) {
  std::memcpy(to, from, static_cast<size_t>(p.kv_heads * p.d) * sizeof(T));
}

template <typename T>
void StoreRow(const T* from, F8E4M3* to, const float* scales, const Params& p) {
  for (int64_t head = 0; head < p.kv_heads; ++head) {
    const float scale = scales == nullptr ? 1.0f : scales[head];
    for (int64_t i = head * p.d; i < (head + 1) * p.d; ++i) to[i] = ToFloat8(pyxla::ToFloat(from[i]) / scale);
  }
}

template <typename T, typename C>
void Tokens(const Params& p, int64_t begin, int64_t end) {
  const int64_t row = p.kv_heads * p.d;
  C* keys = static_cast<C*>(p.cache);
  C* values = keys + p.slots * row;
  const float* value_scales = p.kv_scales == nullptr ? nullptr : p.kv_scales + p.kv_heads;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = SlotOf(p, token);
    if (slot == -1) continue;
    StoreRow(static_cast<const T*>(p.key) + token * row, keys + slot * row, p.kv_scales, p);
    StoreRow(static_cast<const T*>(p.value) + token * row, values + slot * row, value_scales, p);
  }
}

}  // namespace

int64_t SlotOf(const Params& params, int64_t token) {
  return params.wide_slots ? static_cast<const int64_t*>(params.slot_mapping)[token]
                           : static_cast<const int32_t*>(params.slot_mapping)[token];
}

void ReshapeAndCacheHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::DispatchFloat(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return params.float8_cache ? Tokens<T, F8E4M3>(params, begin, end) : Tokens<T, T>(params, begin, end);
  });
}

}  // namespace reshape_and_cache
