#include "paged_attention/paged_attention_kernels.h"
#include "paged_attention/paged_attention_prefill_mma.cuh"
#include "paged_attention/paged_attention_prefill_wgmma.cuh"

namespace paged_attention {

// Rows are counted in 32 bits.
bool PrefillCovers(const Params& p) {
  return (p.dtype == Dtype::kBFloat16 || p.dtype == Dtype::kFloat16) && p.kv_dtype == p.dtype &&
         p.tokens * p.heads <= INT32_MAX;
}

template <typename T>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  using namespace prefill;
  bool launched = false;
  cudaError_t error = cudaSuccess;
  switch (p.head_dim) {
    case 64: error = wgmma::Launch<T, 64>(stream, p, &launched); break;
    case 128: error = wgmma::Launch<T, 128>(stream, p, &launched); break;
    case 192: error = wgmma::Launch<T, 192>(stream, p, &launched); break;
    case 256: error = wgmma::Launch<T, 256>(stream, p, &launched); break;
  }
  if (launched || error != cudaSuccess) return error;
  if (p.head_dim <= 64) return mma::Launch<T, 64>(stream, p);
  if (p.head_dim <= 128) return mma::Launch<T, 128>(stream, p);
  return mma::Launch<T, 256>(stream, p);
}

cudaError_t LaunchPrefill(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
  return params.dtype == Dtype::kBFloat16 ? Launch<__nv_bfloat16>(stream, params) : Launch<__half>(stream, params);
}

}  // namespace paged_attention
