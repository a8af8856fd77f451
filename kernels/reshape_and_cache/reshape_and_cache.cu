#include <type_traits>

#include "_kv_cache/kv_store.cuh"
#include "pyxla/device/heads.cuh"
#include "reshape_and_cache/reshape_and_cache.h"

namespace reshape_and_cache {

using pyxla::Vector;

constexpr int kMaxThreads = 256;
constexpr int kCtasPerSm = 8;  // at most 32 registers

// A thread moves one vector of a key and the same of a value; no vector spans two heads.
template <typename T, typename C, int kCount>
__global__ void __launch_bounds__(kMaxThreads, kCtasPerSm)
    ReshapeAndCacheKernel(Params p, int64_t head_vectors, unsigned item_blocks) {
  const auto [token, head, item] = pyxla::PlaceOfThread(item_blocks);
  if (token >= p.tokens || head >= p.kv_heads || item >= head_vectors) return;
  const int64_t row_vectors = p.kv_heads * head_vectors, column = head * head_vectors + item;
  const int64_t from = token * row_vectors + column;
  const int64_t slot = p.slot_mapping[token];
  const auto key = pyxla::LoadOnce(static_cast<const Vector<T, kCount>*>(p.key) + from);
  const auto value = pyxla::LoadOnce(static_cast<const Vector<T, kCount>*>(p.value) + from);
  const bool scaled = !std::is_same_v<T, C> && p.kv_scales != nullptr;
  const float key_scale = scaled ? p.kv_scales[head] : 1.0f;
  const float value_scale = scaled ? p.kv_scales[p.kv_heads + head] : 1.0f;
  __syncwarp();  // else the compiler lets key and value wait for the slot
  if (slot < 0 || slot >= p.slots) return;
  auto* to = static_cast<Vector<C, kCount>*>(p.cache) + slot * row_vectors + column;
  pyxla::StoreToCache(to, key, key_scale);
  pyxla::StoreToCache(to + p.slots * row_vectors, value, value_scale);
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
