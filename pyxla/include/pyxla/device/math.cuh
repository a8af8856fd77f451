// Arithmetic that kernels share: fast exponentials, and pairs of 16-bit numbers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace pyxla {

/** log2(e) and ln(2). */
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/** 2^x in one instruction, for results of 16 bits: relative error below 2^-21, zero where the result is subnormal. */
__device__ inline float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/** 1 / x, as exact as Exp2. */
__device__ inline float Reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/**
 * Coefficients of x^3, x^5, x^7 and x^9 in tanh(x) = x + ..., for x up to kTanhSeriesEnd: those whose largest
 * relative error is least, 2^-24.7.
 */
inline constexpr float kTanh3 = -0.33332947f, kTanh5 = 0.13320725f, kTanh7 = -0.052671757f, kTanh9 = 0.016437469f;
inline constexpr float kTanhSeriesEnd = 0.55f;

/** tanh(x), relative error below 2^-22: by Exp2, and by the series where that would cancel. */
__device__ inline float Tanh(float x) {
  const float square = x * x;
  const float small = x + x * square * (kTanh3 + square * (kTanh5 + square * (kTanh7 + square * kTanh9)));
  const float large = 1 - 2 * Reciprocal(1 + Exp2(2 * kLog2E * fabsf(x)));
  return fabsf(x) < kTanhSeriesEnd ? small : copysignf(large, x);
}

/** Two numbers as T, __half or __nv_bfloat16, in one register: `low` in its lower half. */
template <typename T>
__device__ inline uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// Converts without the instruction, which GPUs before sm_89 lack. CUDA's own function is so long there that compiling
// it takes a minute.
__host__ __device__ inline uint32_t E4m3x2ToHalf2Emulated(uint32_t pair) {
  // float16's exponents are greater by 8, so the same bits mean 2^-8 as much. All ones are NaN.
  const uint32_t apart = (pair & 0xff) | (pair & 0xff00) << 8;
  const uint32_t bits = (apart & 0x00800080) << 8 | (apart & 0x007f007f) << 7;
  const uint32_t is_nan = ((apart & 0x007f007f) + 0x00010001) >> 7 & 0x00010001;
  __half2 halves;
  memcpy(static_cast<void*>(&halves), &bits, sizeof(halves));
  halves = __hmul2(halves, __float2half2_rn(256));
  uint32_t result;
  memcpy(&result, &halves, sizeof(result));
  return result | is_nan * 0x7e00;
}

/** The two e4m3 numbers in the lower half of `pair` as two of float16, which holds each exactly. */
__device__ inline uint32_t E4m3x2ToHalf2(uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return reinterpret_cast<const uint32_t&>(halves);
#else
  return E4m3x2ToHalf2Emulated(pair);
#endif
}

/** The same in two of T, __half or __nv_bfloat16. Both hold each number exactly. */
template <typename T>
__device__ inline uint32_t E4m3x2To(uint32_t pair) {
  const uint32_t halves = E4m3x2ToHalf2(pair);
  if constexpr (std::is_same_v<T, __half>) return halves;
  const float2 numbers = __half22float2(reinterpret_cast<const __half2&>(halves));
  return Pack<T>(numbers.x, numbers.y);
}

}  // namespace pyxla
