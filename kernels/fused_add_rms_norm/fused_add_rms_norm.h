// y = x + residual; residual = y; out[r][i] = y[r][i] / sqrt(mean_i(y[r][i]^2) + eps) * weight[i]
//
//   x:        [rows, hidden], T, contiguous, read
//   residual: [rows, hidden], T, contiguous, read and written
//   weight:   [hidden], T or float, contiguous, read; null: all ones
//   out:      [rows, hidden], T, contiguous, written
//
// T is float, bfloat16 or float16. Any number of rows, any hidden. y is formed in float; residual and out are rounded
// from it once each. Squares are added up in float or better.
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467; the fused form is vLLM's.
// Test: devtool test fused_add_rms_norm
#pragma once

#include <cstdint>

#include "common/float_type.h"

namespace fused_add_rms_norm {

struct Params {
  const void* x;
  void* residual;
  const void* weight;
  void* out;
  int64_t rows;
  int64_t hidden;
  double eps;
  pyxla::FloatType dtype;
  pyxla::FloatType weight_dtype;
};

// Rows [begin, end) on the calling thread.
void FusedAddRmsNormHost(const Params& params, int64_t begin, int64_t end);

}  // namespace fused_add_rms_norm

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace fused_add_rms_norm {

cudaError_t LaunchFusedAddRmsNorm(cudaStream_t stream, const Params& params);

}  // namespace fused_add_rms_norm
#endif
