// Every head x of a token is rotated by the angles of the token's position, pair by pair (a, b):
//   out[a] = x[a] * cos - x[b] * sin, out[b] = x[b] * cos + x[a] * sin
//   pair j of rot_dim / 2 is (j, j + rot_dim / 2), or (2 * j, 2 * j + 1) if interleaved; the rest of a head stays.
//
//   positions:     [tokens], int32 or int64, read
//   cos_sin_cache: [max_position, rot_dim], T or float, contiguous, read; a row is cos for all pairs, then sin
//
// T is float, bfloat16 or float16; formed in float and rounded once. rot_dim is even and at most d; other sizes are
// free. A position outside of [0, max_position) is refused on the host; on the GPU it makes what is rotated NaN.
// Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, arXiv:2104.09864.
#pragma once

#include <cstdint>

#include "pyxla/float_type.h"
#include "pyxla/indices.h"

namespace pyxla {

/** What the ops that rotate heads of d elements take of it; the pointers as above. */
struct RotaryParams {
  Indices positions;
  const void* cos_sin_cache;
  int64_t tokens;
  int64_t d;
  int64_t rot_dim;
  int64_t max_position;
  bool interleaved;
  FloatType dtype;
  FloatType table_dtype;  // cos_sin_cache's
};

}  // namespace pyxla
