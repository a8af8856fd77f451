// Which of the prefill kernels a call takes. Each dtype of the cache is compiled in a file of its own.
#pragma once

#include "paged_attention/prefill/sm80_kernel.cuh"
#include "paged_attention/prefill/sm90_kernel.cuh"

namespace paged_attention::prefill {

template <typename T, typename Kv>
cudaError_t LaunchForDim(cudaStream_t stream, const Params& p) {
  bool launched = false;
  cudaError_t error = cudaSuccess;
  if (p.head_dim == 64) error = sm90::Launch<sm90::Shape<T, Kv, 64>>(stream, p, &launched);
  if (p.head_dim == 128) error = sm90::Launch<sm90::Shape<T, Kv, 128>>(stream, p, &launched);
  if constexpr (std::is_same_v<T, Kv>) {
    if (p.head_dim == 192) error = sm90::Launch<sm90::Shape<T, Kv, 192>>(stream, p, &launched);
    if (p.head_dim == 256) error = sm90::Launch<sm90::Shape<T, Kv, 256>>(stream, p, &launched);
  }
  if (launched || error != cudaSuccess) return error;
  if (p.head_dim <= 64) return sm80::Launch<T, Kv, 64>(stream, p);
  if (p.head_dim <= 128) return sm80::Launch<T, Kv, 128>(stream, p);
  return sm80::Launch<T, Kv, 256>(stream, p);
}

}  // namespace paged_attention::prefill
