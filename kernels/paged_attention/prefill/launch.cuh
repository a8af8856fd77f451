// Which of the prefill kernels a call takes. Each dtype is compiled in a file of its own.
#pragma once

#include "paged_attention/prefill/sm80_kernel.cuh"
#include "paged_attention/prefill/sm90_kernel.cuh"

namespace paged_attention::prefill {

template <typename T>
cudaError_t LaunchForDim(cudaStream_t stream, const Params& p) {
  bool launched = false;
  cudaError_t error = cudaSuccess;
  switch (p.head_dim) {
    case 64: error = sm90::Launch<sm90::Shape<T, T, 64>>(stream, p, &launched); break;
    case 128: error = sm90::Launch<sm90::Shape<T, T, 128>>(stream, p, &launched); break;
    case 192: error = sm90::Launch<sm90::Shape<T, T, 192>>(stream, p, &launched); break;
    case 256: error = sm90::Launch<sm90::Shape<T, T, 256>>(stream, p, &launched); break;
  }
  if (launched || error != cudaSuccess) return error;
  if (p.head_dim <= 64) return sm80::Launch<T, 64>(stream, p);
  if (p.head_dim <= 128) return sm80::Launch<T, 128>(stream, p);
  return sm80::Launch<T, 256>(stream, p);
}

}  // namespace paged_attention::prefill
