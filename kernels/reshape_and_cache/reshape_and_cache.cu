#include <cuda_fp8.h>

#include <algorithm>
#include <type_traits>

#include "common/vector.cuh"
#include "reshape_and_cache/reshape_and_cache.h"

namespace reshape_and_cache {

using pyxla::Vector;

constexpr int kThreads = 256;
// The grid's x dimension holds at most 2^31 - 1 blocks; a loop covers the rest.
constexpr int64_t kMaxBlocks = 1 << 30;

// A vector as the cache holds it. The conversion to float8 saturates.
template <typename T, typename C, int kCount>
__device__ inline Vector<C, kCount> Stored(const Vector<T, kCount>& from, const float* scales, int64_t head) {
  if constexpr (std::is_same_v<T, C>) {
    return from;
  } else {
    const float scale = scales == nullptr ? 1.0f : scales[head];
    Vector<C, kCount> to;
#pragma unroll
    for (int i = 0; i < kCount; ++i) to.values[i] = static_cast<C>(static_cast<float>(from.values[i]) / scale);
    return to;
  }
}

// A thread moves one vector of a key and the same of a value; no vector spans two heads.
template <typename T, typename C, int kCount>
__global__ void __launch_bounds__(kThreads) ReshapeAndCacheKernel(Params p) {
  const int64_t head_vectors = p.d / kCount, row_vectors = p.kv_heads * head_vectors;
  const int64_t vectors = p.tokens * row_vectors, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  auto* keys = static_cast<Vector<C, kCount>*>(p.cache);
  auto* values = keys + p.slots * row_vectors;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += stride) {
    const auto key = pyxla::LoadOnce(static_cast<const Vector<T, kCount>*>(p.key) + i);
    const auto value = pyxla::LoadOnce(static_cast<const Vector<T, kCount>*>(p.value) + i);
    const int64_t token = i / row_vectors, column = i - token * row_vectors;
    const int64_t slot = p.wide_slots ? static_cast<const int64_t*>(p.slot_mapping)[token]
                                      : static_cast<const int32_t*>(p.slot_mapping)[token];
    if (slot < 0 || slot >= p.slots) continue;
    const int64_t at = slot * row_vectors + column;
    const int64_t head = p.kv_scales == nullptr ? 0 : column / head_vectors;
    keys[at] = Stored<T, C>(key, p.kv_scales, head);
    values[at] = Stored<T, C>(value, p.kv_scales == nullptr ? nullptr : p.kv_scales + p.kv_heads, head);
  }
}

template <typename T, typename C>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  constexpr int kCount = pyxla::kVectorCount<T>;
  const bool vectorized = p.d % kCount == 0 && pyxla::IsAligned(p.key, pyxla::kVectorBytes) &&
                          pyxla::IsAligned(p.value, pyxla::kVectorBytes) &&
                          pyxla::IsAligned(p.cache, sizeof(C) * kCount);
  const int64_t vectors = p.tokens * p.kv_heads * (vectorized ? p.d / kCount : p.d);
  const auto blocks = static_cast<unsigned>(std::min((vectors + kThreads - 1) / kThreads, kMaxBlocks));
  if (vectorized) {
    ReshapeAndCacheKernel<T, C, kCount><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    ReshapeAndCacheKernel<T, C, 1><<<blocks, kThreads, 0, stream>>>(p);
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
