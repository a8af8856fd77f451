// Writes vectors of keys and values into a paged cache on the GPU.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "_kv_cache/kv_store.h"
#include "pyxla/device/vector.cuh"

namespace pyxla {

/**
 * x / scale to a float's precision, by the scale's reciprocal, which all of a head share, and the remainder of the
 * first quotient; in float8 it is the division's result, for a third of its instructions. The scale is in [2^-60,
 * 2^60]: no reciprocal nor remainder that counts is subnormal.
 */
__device__ inline float Divided(float x, float scale, float reciprocal) {
  const float quotient = x * reciprocal;
  // The remainder is negated, so that a quotient of -0 stays. Where the quotient saturates, it may be infinite.
  const float better = fmaf(fmaf(quotient, scale, -x), -reciprocal, quotient);
  return fabsf(quotient) < 512.0f ? better : quotient;
}

/** Writes a vector as the cache, of C, holds it; the scale counts in float8. The conversion to float8 saturates. */
template <typename T, typename C, int kCount>
__device__ inline void StoreToCache(Vector<C, kCount>* to, const Vector<T, kCount>& from, float scale) {
  static_assert(kCount == 1 || kCount % 4 == 0);
  if constexpr (std::is_same_v<T, C>) {
    *to = from;
  } else {
    Vector<float, kCount> divided;
    if (scale >= 0x1p-60f && scale <= 0x1p60f) {
      const float reciprocal = 1.0f / scale;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        divided.values[i] = Divided(static_cast<float>(from.values[i]), scale, reciprocal);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) divided.values[i] = static_cast<float>(from.values[i]) / scale;
    }
    if constexpr (kCount == 1) {
      to->values[0] = static_cast<C>(divided.values[0]);
    } else {
      // One instruction converts two; as words, because the compiler takes vectors of bytes apart.
      Vector<__nv_fp8x4_storage_t, kCount / 4> words;
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) {
        const float* v = divided.values + 4 * i;
        words.values[i] = __nv_fp8x4_e4m3(make_float4(v[0], v[1], v[2], v[3])).__x;
      }
      *reinterpret_cast<Vector<__nv_fp8x4_storage_t, kCount / 4>*>(to) = words;
    }
  }
}

}  // namespace pyxla
