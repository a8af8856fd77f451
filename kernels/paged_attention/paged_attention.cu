#include "paged_attention/kernels.h"
#include "paged_attention/sequences.cuh"

namespace paged_attention {

// The choice is that of shapes and dtypes alone, because the lengths are on the device, where each kernel looks for
// what is its own. Of no more rows than sequences there is no prefill to speak of: the decode kernel takes all.
cudaError_t LaunchPagedAttention(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
  if (DecodeCovers(params)) {
    const bool has_prefill = params.tokens > params.seqs && PrefillCovers(params);
    const cudaError_t error = LaunchDecode(stream, params, !has_prefill);
    if (error != cudaSuccess || !has_prefill) return error;
    return LaunchPrefill(stream, params);
  }
  return LaunchGeneric(stream, params);
}

}  // namespace paged_attention
