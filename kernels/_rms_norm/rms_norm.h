// out[r][i] = x[r][i] / sqrt(mean_i(x[r][i]^2) + eps) * weight[i], of rms_norm and the ops that contain it.
//
//   x:      [rows, hidden], T, contiguous, read
//   weight: [hidden], T or float, contiguous, read; null: all ones
//   out:    [rows, hidden], T, contiguous, written
//
// T is float, bfloat16 or float16. Any number of rows, any hidden. Squares are added up in float or better; the result
// is rounded once. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
#pragma once

#include <cstdint>

#include "pyxla/float_type.h"

namespace pyxla {

/** What both platforms' functions take; the pointers as above. */
struct RmsNormParams {
  const void* x;
  const void* weight;
  void* out;
  int64_t rows;
  int64_t hidden;
  double eps;
  FloatType dtype;
  FloatType weight_dtype;
};

}  // namespace pyxla
