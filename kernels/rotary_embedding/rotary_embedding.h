// query_out = query rotated, key_out = key rotated
//
//   query:  [tokens, heads, d], T, contiguous, read
//   key:    [tokens, kv_heads, d], T, contiguous, read
//   query_out, key_out: as query and key, written; both may be query and key themselves
//
// _rotary/rotary.h has the rotation, positions, table, and what is formed how. Test: devtool test rotary_embedding
#pragma once

#include "_rotary/rotary.h"

namespace rotary_embedding {

struct Params : pyxla::RotaryParams {
  const void* query;
  const void* key;
  void* query_out;
  void* key_out;
  int64_t heads;
  int64_t kv_heads;
};

// Tokens [begin, end) on the calling thread; their positions are in range.
void RotaryEmbeddingHost(const Params& params, int64_t begin, int64_t end);

}  // namespace rotary_embedding

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace rotary_embedding {

cudaError_t LaunchRotaryEmbedding(cudaStream_t stream, const Params& params);

}  // namespace rotary_embedding
#endif
