// Host arithmetic on XLA's floating dtypes: load as float, compute, store rounded to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/ffi.h"

namespace pyxla {

using F16 = _Float16;

struct BF16 {
  uint16_t bits;
};

inline float ToFloat(float value) { return value; }
inline float ToFloat(F16 value) { return static_cast<float>(value); }
inline float ToFloat(BF16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

template <typename T>
T FromFloat(float value);

template <>
inline float FromFloat<float>(float value) {
  return value;
}
template <>
inline F16 FromFloat<F16>(float value) {
  return static_cast<F16>(value);
}
template <>
inline BF16 FromFloat<BF16>(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  // A NaN keeps its sign and stays a NaN: rounding could carry its payload into infinity.
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : rounded)};
}

template <typename T>
struct DtypeTag {
  using type = T;
};

// Calls `body` with the C++ type of a checked dtype: DispatchFloat(dtype, [&](auto tag) { using T = typename
// decltype(tag)::type; ... }). Precondition: dtype is F32, BF16 or F16 (CheckDtype).
template <typename Body>
auto DispatchFloat(ffi::DataType dtype, Body&& body) {
  switch (dtype) {
    case ffi::F16: return body(DtypeTag<F16>());
    case ffi::BF16: return body(DtypeTag<BF16>());
    default: return body(DtypeTag<float>());
  }
}

}  // namespace pyxla
