// out[r][i] = silu(x[r][i]) * x[r][d + i], silu(v) = v / (1 + exp(-v))
//
//   x:   [rows, 2 * d], T, contiguous, read
//   out: [rows, d], T, contiguous, written
//
// T is float, bfloat16 or float16; formed in float and rounded once. Any number of rows, any d.
// Source: Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202 (SwiGLU).
// Test: devtool test silu_and_mul
#pragma once

#include <cstdint>

#include "common/float_type.h"

namespace silu_and_mul {

struct Params {
  const void* x;
  void* out;
  int64_t rows;
  int64_t d;
  pyxla::FloatType dtype;
};

// Elements [begin, end) of out on the calling thread.
void SiluAndMulHost(const Params& params, int64_t begin, int64_t end);

}  // namespace silu_and_mul

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace silu_and_mul {

cudaError_t LaunchSiluAndMul(cudaStream_t stream, const Params& params);

}  // namespace silu_and_mul
#endif
