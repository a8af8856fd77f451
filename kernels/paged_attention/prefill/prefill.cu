#include "paged_attention/kernels.h"

namespace paged_attention {

// Rows are counted in 32 bits.
bool PrefillCovers(const Params& p) {
  return (p.dtype == Dtype::kBFloat16 || p.dtype == Dtype::kFloat16) && p.tokens * p.heads <= INT32_MAX &&
         (p.kv_dtype == p.dtype || prefill::CoversFloat8(p));
}

cudaError_t LaunchPrefill(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
  if (params.kv_dtype == Dtype::kFloat8E4M3) return prefill::LaunchFloat8(stream, params);
  return params.dtype == Dtype::kBFloat16 ? prefill::LaunchBFloat16(stream, params)
                                          : prefill::LaunchFloat16(stream, params);
}

}  // namespace paged_attention
