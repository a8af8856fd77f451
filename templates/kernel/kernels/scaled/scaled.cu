#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "scaled/scaled.h"

namespace scaled_op {

constexpr int kThreads = 256;
// A grid-stride loop covers the rest: the grid's x dimension holds at most 2^31 - 1 blocks.
constexpr int64_t kMaxBlocks = 1 << 20;

template <typename T>
__global__ void ScaledKernel(const T* x, T* out, int64_t element_count, float factor) {
  const int64_t grid_stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < element_count; i += grid_stride) {
    // replace: the formula
    float blend = static_cast<float>(x[i]);
    out[i] = static_cast<T>(factor * blend);
  }
}

template <typename T>
static cudaError_t Launch(cudaStream_t stream, const Params& params) {
  const int64_t blocks = std::min((params.element_count + kThreads - 1) / kThreads, kMaxBlocks);
  ScaledKernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(params.x), static_cast<T*>(params.out), params.element_count,
      static_cast<float>(Factor(params)));
  return cudaGetLastError();
}

cudaError_t LaunchScaled(cudaStream_t stream, const Params& params) {
  if (params.element_count == 0) return cudaSuccess;
  switch (params.tensor_dtype) {
    case Dtype::kFloat32: return Launch<float>(stream, params);
    case Dtype::kBFloat16: return Launch<__nv_bfloat16>(stream, params);
    case Dtype::kFloat16: return Launch<__half>(stream, params);
  }
  return cudaErrorInvalidValue;
}

}  // namespace scaled_op
