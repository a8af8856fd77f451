// out[r][i] = activation(x[r][i]) * x[r][d + i]: what the gated activations take, one op each.
//
//   x:   [rows, 2 * d], T, contiguous, read
//   out: [rows, d], T, contiguous, written
//
// T is float, bfloat16 or float16; formed in float and rounded once. Any number of rows, any d.
// Source: Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202.
#pragma once

#include <cstdint>

#include "pyxla/float_type.h"

namespace pyxla {

/** What both platforms' functions take; the pointers as above. */
struct GatedParams {
  const void* x;
  void* out;
  int64_t rows;
  int64_t d;
  FloatType dtype;
};

}  // namespace pyxla
