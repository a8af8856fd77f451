#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "simple_add/simple_add.h"

namespace simple_add {

constexpr int kThreads = 256;
constexpr int kElementsPerThread = 8;
// A grid stride loop covers the rest: the grid's x dimension holds at most 2^31 - 1 blocks.
constexpr int64_t kMaxBlocks = 1 << 20;

template <typename T>
__global__ void SimpleAddKernel(const T* a, const T* b, T* out, int64_t n, float alpha) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    out[i] = static_cast<T>(static_cast<float>(a[i]) + alpha * static_cast<float>(b[i]));
  }
}

template <typename T>
static cudaError_t Launch(cudaStream_t stream, const void* a, const void* b, void* out, int64_t n, float alpha) {
  const int64_t per_block = static_cast<int64_t>(kThreads) * kElementsPerThread;
  const int64_t blocks = std::min((n + per_block - 1) / per_block, kMaxBlocks);
  SimpleAddKernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), n, alpha);
  return cudaGetLastError();
}

cudaError_t LaunchSimpleAdd(cudaStream_t stream, Dtype dtype, const void* a, const void* b, void* out, int64_t n,
                            float alpha) {
  if (n == 0) return cudaSuccess;
  switch (dtype) {
    case Dtype::kFloat32: return Launch<float>(stream, a, b, out, n, alpha);
    case Dtype::kBFloat16: return Launch<__nv_bfloat16>(stream, a, b, out, n, alpha);
    case Dtype::kFloat16: return Launch<__half>(stream, a, b, out, n, alpha);
  }
  return cudaErrorInvalidValue;
}

}  // namespace simple_add
