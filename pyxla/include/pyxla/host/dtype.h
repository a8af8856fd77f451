// Host arithmetic on XLA's floating dtypes: load as float, compute, store rounded to nearest even.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "pyxla/float_type.h"
#include "pyxla/host/multiversion.h"

namespace pyxla {

/** A float16 in host memory: its bits. */
struct F16 {
  uint16_t bits;
};

/** A bfloat16 in host memory: its bits. */
struct BF16 {
  uint16_t bits;
};

// Conversions by bits, without branches, so that loops over them become vector code on any machine. XLA's threads
// flush subnormal floats to zero: no step below forms one.

/** The float that has these bits. */
PYXLA_INLINE float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/** The bits of a float. */
PYXLA_INLINE uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/** The value as float; exact. */
PYXLA_INLINE float ToFloat(float value) { return value; }

PYXLA_INLINE float ToFloat(BF16 value) { return BitsToFloat(static_cast<uint32_t>(value.bits) << 16); }

PYXLA_INLINE float ToFloat(F16 value) {
  constexpr uint32_t kInfinity = 31u << 23, kRebias = (127u - 15u) << 23;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fff) << 13;
  const uint32_t exponent = magnitude & kInfinity;
  // A subnormal is a fraction of 2^-14: form 2^-14 + fraction, then take 2^-14 away.
  const uint32_t subnormal = FloatToBits(BitsToFloat(magnitude + kRebias + (1u << 23)) - BitsToFloat(113u << 23));
  const uint32_t normal = magnitude + kRebias + (exponent == kInfinity ? kRebias : 0);
  return BitsToFloat((exponent == 0 ? subnormal : normal) | static_cast<uint32_t>(value.bits & 0x8000) << 16);
}

/** The value in T (float, BF16, F16), rounded to nearest even; a NaN stays one. */
template <typename T>
PYXLA_INLINE T FromFloat(float value);

template <>
PYXLA_INLINE float FromFloat<float>(float value) {
  return value;
}

template <>
PYXLA_INLINE BF16 FromFloat<BF16>(float value) {
  // A NaN keeps its sign and stays a NaN: rounding could carry its payload into infinity.
  const uint32_t bits = FloatToBits(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : rounded)};
}

template <>
PYXLA_INLINE F16 FromFloat<F16>(float value) {
  constexpr uint32_t kOverflow = (127u + 16u) << 23, kSmallestNormal = (127u - 14u) << 23;
  const uint32_t bits = FloatToBits(value), magnitude = bits & 0x7fffffff;
  // Round to nearest even at bit 13; a carry into the exponent is right, up to infinity.
  const uint32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - ((127u - 15u) << 23)) >> 13;
  // Adding 0.5 shifts a subnormal's bits to the end of the mantissa, and the adder rounds.
  const uint32_t subnormal = FloatToBits(BitsToFloat(magnitude) + 0.5f) - FloatToBits(0.5f);
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  return {static_cast<uint16_t>((magnitude >= kOverflow ? special : finite) | (bits >> 16 & 0x8000))};
}

// Arrays of float16 by the processor's own instruction, which the compiler does not find by itself. `begin` moves past
// what was converted: eight at a time, or nothing on a processor without it.
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx,f16c"))) inline void ConvertByInstruction(const F16* from, float* to, int64_t n,
                                                                     int64_t& begin) {
  typedef short Bits __attribute__((vector_size(16)));
  for (; begin + 8 <= n; begin += 8) {
    Bits bits;
    std::memcpy(&bits, from + begin, sizeof(bits));
    const auto values = __builtin_ia32_vcvtph2ps256(bits);
    std::memcpy(to + begin, &values, sizeof(values));
  }
}
__attribute__((target("avx,f16c"))) inline void ConvertByInstruction(const float* from, F16* to, int64_t n,
                                                                     int64_t& begin) {
  typedef float Values __attribute__((vector_size(32)));
  for (; begin + 8 <= n; begin += 8) {
    Values values;
    std::memcpy(&values, from + begin, sizeof(values));
    const auto bits = __builtin_ia32_vcvtps2ph256(values, 0 /* to nearest even */);
    std::memcpy(to + begin, &bits, sizeof(bits));
  }
}
inline bool HasConvertInstruction() { return __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c"); }
#else
inline void ConvertByInstruction(const F16*, float*, int64_t, int64_t&) {}
inline void ConvertByInstruction(const float*, F16*, int64_t, int64_t&) {}
inline bool HasConvertInstruction() { return false; }
#endif

/** to[i] = from[i] for i in [0, n), rounded where it must be. */
template <typename From, typename To>
PYXLA_INLINE void Convert(const From* __restrict from, To* __restrict to, int64_t n) {
  int64_t begin = 0;
  if constexpr (std::is_same_v<From, F16> || std::is_same_v<To, F16>) {
    if (HasConvertInstruction()) ConvertByInstruction(from, to, n, begin);
  }
  for (int64_t i = begin; i < n; ++i) to[i] = FromFloat<To>(ToFloat(from[i]));
}

/** Hands a type to a generic lambda: `using T = typename decltype(tag)::type`. */
template <typename T>
struct DtypeTag {
  using type = T;
};

/**
 * Calls `body` with the C++ type of the dtype:
 * `DispatchFloat(dtype, [&](auto tag) { using T = typename decltype(tag)::type; ... })`.
 */
template <typename Body>
auto DispatchFloat(FloatType dtype, Body&& body) {
  switch (dtype) {
    case FloatType::kFloat16: return body(DtypeTag<F16>());
    case FloatType::kBFloat16: return body(DtypeTag<BF16>());
    default: return body(DtypeTag<float>());
  }
}

}  // namespace pyxla
