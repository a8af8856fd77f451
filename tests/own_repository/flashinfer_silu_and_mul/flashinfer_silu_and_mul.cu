#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <flashinfer/activation.cuh>

#include "flashinfer_silu_and_mul/flashinfer_silu_and_mul.h"

namespace flashinfer_silu_and_mul_op {

__device__ __forceinline__ float Silu(const float& value) { return value / (1.0f + __expf(-value)); }

template <typename T>
static cudaError_t Launch(cudaStream_t stream, const Params& params) {
  const int columns = static_cast<int>(params.columns);
  const int threads = std::min<int>(columns / (16 / sizeof(T)), 1024);
  flashinfer::activation::act_and_mul_kernel<T, Silu><<<static_cast<unsigned>(params.rows), threads, 0, stream>>>(
      static_cast<T*>(params.out), static_cast<const T*>(params.x), columns);
  return cudaGetLastError();
}

cudaError_t LaunchSiluAndMul(cudaStream_t stream, const Params& params) {
  if (params.rows == 0 || params.columns == 0) return cudaSuccess;
  switch (params.dtype) {
    case Dtype::kFloat32: return Launch<float>(stream, params);
    case Dtype::kBFloat16: return Launch<__nv_bfloat16>(stream, params);
    case Dtype::kFloat16: return Launch<__half>(stream, params);
  }
  return cudaErrorInvalidValue;
}

}  // namespace flashinfer_silu_and_mul_op
