#include "paged_attention/kernels.h"
#include "paged_attention/prefill/scheduler.cuh"

namespace paged_attention {

cudaError_t LaunchPrefill(cudaStream_t stream, const Params& params) {
  if (params.kv_dtype == Dtype::kFloat8E4M3) return prefill::LaunchFloat8(stream, params);
  return params.dtype == Dtype::kBFloat16 ? prefill::LaunchBFloat16(stream, params)
                                          : prefill::LaunchFloat16(stream, params);
}

int64_t prefill::ResultRows(const Params& p) { return SlotRows(p); }

}  // namespace paged_attention
