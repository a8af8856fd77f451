#include <cuda_fp8.h>

#include <type_traits>

#include "common/heads.cuh"
#include "common/vector.cuh"
#include "reshape_and_cache/reshape_and_cache.h"

namespace reshape_and_cache {

using pyxla::Vector;

constexpr int kMaxThreads = 256;
constexpr int kBlocksAtOnce = 8;  // at most 32 registers

// x / scale to a float's precision, by the scale's reciprocal, which all of a head share, and the remainder of
// the first quotient; in float8 it is the division's result, for a third of its instructions. The scale is in [2^-60,
// 2^60]: no reciprocal nor remainder that counts is subnormal.
__device__ inline float Divided(float x, float scale, float reciprocal) {
  const float quotient = x * reciprocal;
  // The remainder is negated, so that a quotient of -0 stays. Where the quotient saturates, it may be infinite.
  const float better = fmaf(fmaf(quotient, scale, -x), -reciprocal, quotient);
  return fabsf(quotient) < 512.0f ? better : quotient;
}

// Writes a vector as the cache holds it. The conversion to float8 saturates.
template <typename T, typename C, int kCount>
__device__ inline void Store(Vector<C, kCount>* to, const Vector<T, kCount>& from, float scale) {
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

// A thread moves one vector of a key and the same of a value; no vector spans two heads.
template <typename T, typename C, int kCount>
__global__ void __launch_bounds__(kMaxThreads, kBlocksAtOnce)
    ReshapeAndCacheKernel(Params p, int64_t head_vectors, unsigned item_blocks) {
  const auto [token, head, item] = pyxla::PlaceOfThread(item_blocks);
  if (token >= p.tokens || head >= p.kv_heads || item >= head_vectors) return;
  const int64_t row_vectors = p.kv_heads * head_vectors, column = head * head_vectors + item;
  const int64_t from = token * row_vectors + column;
  const int64_t slot = p.wide_slots ? static_cast<const int64_t*>(p.slot_mapping)[token]
                                    : static_cast<const int32_t*>(p.slot_mapping)[token];
  const auto key = pyxla::LoadOnce(static_cast<const Vector<T, kCount>*>(p.key) + from);
  const auto value = pyxla::LoadOnce(static_cast<const Vector<T, kCount>*>(p.value) + from);
  const bool scaled = !std::is_same_v<T, C> && p.kv_scales != nullptr;
  const float key_scale = scaled ? p.kv_scales[head] : 1.0f;
  const float value_scale = scaled ? p.kv_scales[p.kv_heads + head] : 1.0f;
  __syncwarp();  // else the compiler lets key and value wait for the slot
  if (slot < 0 || slot >= p.slots) return;
  auto* to = static_cast<Vector<C, kCount>*>(p.cache) + slot * row_vectors + column;
  Store(to, key, key_scale);
  Store(to + p.slots * row_vectors, value, value_scale);
}

template <typename T, typename C, int kCount>
static void LaunchVectors(cudaStream_t stream, const Params& p) {
  const int64_t head_vectors = p.d / kCount;
  const pyxla::HeadsGrid grid = pyxla::HeadsGridOf(p.tokens, p.kv_heads, head_vectors, kMaxThreads);
  ReshapeAndCacheKernel<T, C, kCount><<<grid.blocks, grid.threads, 0, stream>>>(p, head_vectors, grid.item_blocks);
}

template <typename T, typename C>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  constexpr int kCount = pyxla::kVectorCount<T>;
  const bool vectorized = p.d % kCount == 0 && pyxla::IsAligned(p.key, pyxla::kVectorBytes) &&
                          pyxla::IsAligned(p.value, pyxla::kVectorBytes) &&
                          pyxla::IsAligned(p.cache, sizeof(C) * kCount);
  if (vectorized) {
    LaunchVectors<T, C, kCount>(stream, p);
  } else {
    LaunchVectors<T, C, 1>(stream, p);
  }
  return cudaGetLastError();
}

cudaError_t LaunchReshapeAndCache(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0 || params.slots == 0 || params.kv_heads == 0 || params.d == 0) return cudaSuccess;
  return pyxla::DispatchCuda(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return params.float8_cache ? Launch<T, __nv_fp8_e4m3>(stream, params) : Launch<T, T>(stream, params);
  });
}

}  // namespace reshape_and_cache
