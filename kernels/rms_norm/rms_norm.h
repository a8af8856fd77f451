// out[r][i] = x[r][i] / sqrt(mean_i(x[r][i]^2) + eps) * weight[i]
//
//   x:      [rows, hidden], T, contiguous, read
//   weight: [hidden], T or float, contiguous, read; null: all ones
//   out:    [rows, hidden], T, contiguous, written
//
// T is float, bfloat16 or float16. Any number of rows, any hidden. Squares are added up in float or
// better; the result is rounded once.
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
// Test: devtool test rms_norm
#pragma once

#include <cstdint>

namespace rms_norm {

enum class Dtype { kFloat32, kBFloat16, kFloat16 };

struct Params {
  const void* x;
  const void* weight;
  void* out;
  int64_t rows;
  int64_t hidden;
  double eps;
  Dtype dtype;
  Dtype weight_dtype;
};

// Rows [begin, end) on the calling thread.
void RmsNormHost(const Params& params, int64_t begin, int64_t end);

}  // namespace rms_norm

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace rms_norm {

cudaError_t LaunchRmsNorm(cudaStream_t stream, const Params& params);

}  // namespace rms_norm
#endif
