#include "paged_attention/kernels.h"
#include "paged_attention/workspace.cuh"

namespace paged_attention {

int64_t WorkspaceBytes(const Params& p) {
  const int64_t rows = decode::ResultRows(p), prefill_rows = IsDecodeCall(p) ? 0 : prefill::ResultRows(p);
  return CounterBytes(p) + ResultBytes(p, rows > prefill_rows ? rows : prefill_rows);
}

// The choice is that of shapes and dtypes alone, because the lengths are on the device, where each kernel looks for
// what is its own.
cudaError_t LaunchPagedAttention(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
  if (!DecodeCovers(params)) return LaunchGeneric(stream, params);
  const bool all_rows = IsDecodeCall(params);
  const cudaError_t error = LaunchDecode(stream, params, all_rows);
  return error != cudaSuccess || all_rows ? error : LaunchPrefill(stream, params);
}

}  // namespace paged_attention
