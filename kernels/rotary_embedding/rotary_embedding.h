// Every head x of a token is rotated by the angles of the token's position, pair by pair (a, b):
//   out[a] = x[a] * cos - x[b] * sin, out[b] = x[b] * cos + x[a] * sin
//   pair j of rot_dim / 2 is (j, j + rot_dim / 2), or (2 * j, 2 * j + 1) if interleaved; the rest of a head stays.
//
//   positions:     [tokens], int32 or int64, read
//   query:         [tokens, heads, d], T, contiguous, read
//   key:           [tokens, kv_heads, d], T, contiguous, read
//   cos_sin_cache: [max_position, rot_dim], T or float, contiguous, read; a row is cos for all pairs, then sin
//   query_out, key_out: as query and key, written; both may be query and key themselves
//
// T is float, bfloat16 or float16; formed in float and rounded once. rot_dim is even and at most d; other sizes are
// free. A position outside of [0, max_position) is refused on the host; on the GPU it makes what is rotated NaN.
// Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, arXiv:2104.09864.
// Test: devtool test rotary_embedding
#pragma once

#include <cstdint>

#include "common/float_type.h"

namespace rotary_embedding {

struct Params {
  const void* positions;
  const void* query;
  const void* key;
  const void* cos_sin_cache;
  void* query_out;
  void* key_out;
  int64_t tokens;
  int64_t heads;
  int64_t kv_heads;
  int64_t d;
  int64_t rot_dim;
  int64_t max_position;
  bool interleaved;
  bool wide_positions;  // int64
  pyxla::FloatType dtype;
  pyxla::FloatType cache_dtype;
};

int64_t PositionOf(const Params& params, int64_t token);

// Tokens [begin, end) on the calling thread; their positions are in range.
void RotaryEmbeddingHost(const Params& params, int64_t begin, int64_t end);

}  // namespace rotary_embedding

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace rotary_embedding {

cudaError_t LaunchRotaryEmbedding(cudaStream_t stream, const Params& params);

}  // namespace rotary_embedding
#endif
