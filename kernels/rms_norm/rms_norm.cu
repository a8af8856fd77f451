#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "rms_norm/rms_norm.h"

namespace rms_norm {

constexpr int kWarpSize = 32;
constexpr int kMaxThreads = 1024;
static_assert(kMaxThreads / kWarpSize <= kWarpSize, "one warp adds up the sums of all warps");

// The grid's x dimension holds at most 2^31 - 1 blocks; a block goes on to the row a grid further on.
constexpr int64_t kMaxBlocks = 1 << 30;

// A thread moves 16 bytes at a time where every row starts on a 16-byte boundary.
constexpr int kVectorBytes = 16;

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
};

__device__ inline float WarpSum(float value) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
  return value;
}

template <typename T, typename W, int kCount>
__global__ void __launch_bounds__(kMaxThreads) RmsNormKernel(Params p) {
  using XVector = Vector<T, kCount>;
  using WVector = Vector<W, kCount>;
  __shared__ float warp_sums[kWarpSize];
  const int64_t vectors = p.hidden / kCount;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int warps = blockDim.x / kWarpSize;

  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const auto* x = reinterpret_cast<const XVector*>(static_cast<const T*>(p.x) + row * p.hidden);
    auto* out = reinterpret_cast<XVector*>(static_cast<T*>(p.out) + row * p.hidden);
    const auto* weight = static_cast<const WVector*>(p.weight);

    // Sum of squares: per thread, per warp, then over the block's warps.
    float sum = 0;
    for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
      const XVector value = x[v];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float element = static_cast<float>(value.values[i]);
        sum += element * element;
      }
    }
    sum = WarpSum(sum);
    if (lane == 0) warp_sums[warp] = sum;
    __syncthreads();
    const float total = WarpSum(lane < warps ? warp_sums[lane] : 0.0f);
    // Once per row in double: rsqrtf is off by two units in the last place, which every element would inherit.
    const float scale =
        static_cast<float>(1.0 / sqrt(static_cast<double>(total) / static_cast<double>(p.hidden) + p.eps));

    // Scale and weight; x comes from the cache now.
    for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
      const XVector value = x[v];
      WVector w;
      if (weight != nullptr) w = weight[v];
      XVector result;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float scaled = static_cast<float>(value.values[i]) * scale;
        result.values[i] = static_cast<T>(weight != nullptr ? scaled * static_cast<float>(w.values[i]) : scaled);
      }
      out[v] = result;
    }
    // The next row writes warp_sums again.
    __syncthreads();
  }
}

template <typename T, typename W>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  constexpr int kCount = kVectorBytes / sizeof(T);
  const auto aligned = [](const void* pointer, size_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
  };
  const bool vectorized = p.hidden % kCount == 0 && aligned(p.x, kVectorBytes) && aligned(p.out, kVectorBytes) &&
                          aligned(p.weight, sizeof(W) * kCount);
  const int64_t items = vectorized ? p.hidden / kCount : p.hidden;
  const int64_t warps = (items + kWarpSize - 1) / kWarpSize;
  const int threads = static_cast<int>(std::min<int64_t>(warps * kWarpSize, kMaxThreads));
  const auto blocks = static_cast<unsigned>(std::min(p.rows, kMaxBlocks));
  if (vectorized) {
    RmsNormKernel<T, W, kCount><<<blocks, threads, 0, stream>>>(p);
  } else {
    RmsNormKernel<T, W, 1><<<blocks, threads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

cudaError_t LaunchRmsNorm(cudaStream_t stream, const Params& params) {
  if (params.rows == 0 || params.hidden == 0) return cudaSuccess;
  const bool wide_weight = params.weight_dtype == Dtype::kFloat32;
  switch (params.dtype) {
    case Dtype::kFloat32: return Launch<float, float>(stream, params);
    case Dtype::kBFloat16:
      return wide_weight ? Launch<__nv_bfloat16, float>(stream, params)
                         : Launch<__nv_bfloat16, __nv_bfloat16>(stream, params);
    case Dtype::kFloat16:
      return wide_weight ? Launch<__half, float>(stream, params) : Launch<__half, __half>(stream, params);
  }
  return cudaErrorInvalidValue;
}

}  // namespace rms_norm
