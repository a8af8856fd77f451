// Any sizes, and float: a warp for each element of the result.
#include <algorithm>

#include "grouped_product/kernels.h"
#include "pyxla/ceil_div.h"
#include "pyxla/device/vector.cuh"
#include "pyxla/device/warp.cuh"

namespace grouped_product::generic {

using pyxla::kWarpSize;

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) GenericKernel(Params p) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarpSize), elements = p.tokens * p.top_k * p.n;
  const int64_t rows_per_x = p.x_rows == p.top_k ? 1 : p.top_k;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarpSize; i < elements; i += warps) {
    const int64_t row = i / p.n, column = i - row * p.n, expert = p.experts[row];
    const bool exists = expert >= 0 && expert < p.num_experts;
    float sum = 0;
    if (exists) {
      const T* x = static_cast<const T*>(p.x) + row / rows_per_x * p.k;
      const T* weight = static_cast<const T*>(p.weight) + (expert * p.n + column) * p.k;
      for (int64_t j = lane; j < p.k; j += kWarpSize) sum += static_cast<float>(x[j]) * static_cast<float>(weight[j]);
    }
#pragma unroll
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(pyxla::kAllLanes, sum, lanes);
    if (lane != 0) continue;
    if (exists && p.bias != nullptr) sum += static_cast<float>(static_cast<const T*>(p.bias)[expert * p.n + column]);
    static_cast<T*>(p.out)[i] = static_cast<T>(sum);
  }
}

cudaError_t Launch(cudaStream_t stream, const Params& p) {
  constexpr int64_t kMaxBlocks = 1 << 20;
  const int64_t blocks = std::min(pyxla::CeilDiv(p.rows() * p.n, kThreads / kWarpSize), kMaxBlocks);
  return pyxla::DispatchCuda(p.dtype, [&](auto tag) {
    GenericKernel<typename decltype(tag)::type><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace grouped_product::generic
