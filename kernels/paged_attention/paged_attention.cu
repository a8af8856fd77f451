#include "paged_attention/kernels.h"
#include "paged_attention/sequences.cuh"

namespace paged_attention {

// Up to this many tokens, a few for each sequence, the decode kernel takes all: a prefill can only be short, and a
// launch of the prefill kernel takes 5 us even if there is none. See NOTES.md.
constexpr int64_t kFewTokens = 128;

// Whether the shapes are those of decodes, with one new token for each sequence or a few.
bool IsDecodeCall(const Params& p) {
  return p.tokens <= p.seqs || (p.tokens <= kFewTokens && p.tokens <= p.seqs * DecodeTokens(p));
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
