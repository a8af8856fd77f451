#include "paged_attention/paged_attention_device.cuh"
#include "paged_attention/paged_attention_kernels.h"

namespace paged_attention {

// Neither the decode nor the prefill kernel has run on a GPU in its present form (NOTES.md). Until both have, the
// general kernel takes every row; CUDAFLAGS=-DPYXLA_PAGED_ATTENTION_TENSOR_CORES builds the others too and takes them.
//
// The choice is that of shapes and dtypes alone, because the lengths are on the device, where each kernel looks for
// what is its own. Of no more rows than sequences there is no prefill to speak of: the decode kernel takes all.
cudaError_t LaunchPagedAttention(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
#ifdef PYXLA_PAGED_ATTENTION_TENSOR_CORES
  if (DecodeCovers(params)) {
    const bool has_prefill = params.tokens > params.seqs && PrefillCovers(params);
    const cudaError_t error = LaunchDecode(stream, params, !has_prefill);
    if (error != cudaSuccess || !has_prefill) return error;
    return LaunchPrefill(stream, params);
  }
#endif
  return LaunchRows(stream, params);
}

}  // namespace paged_attention
