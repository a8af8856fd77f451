// replace: the formula, and what each pointer holds
// out[i] = factor * blend
//   blend = x[i]
//   factor = scale
//
//   x: [element_count], T, contiguous, read
//   out: [element_count], T, contiguous, written
//
// T is float, bfloat16 or float16; computed in float and rounded once.
// Test: devtool test scaled
#pragma once

#include <cstdint>

namespace scaled_op {

enum class Dtype { kFloat32, kBFloat16, kFloat16 };

// replace: the arguments of both platforms' functions
struct Params {
  const void* x;
  void* out;
  int64_t element_count;
  Dtype tensor_dtype;
  double scale;
};

// replace: what the attributes do
inline double Factor(const Params& params) {
  double factor = static_cast<double>(params.scale);
  return factor;
}

// Elements [begin, end) on the calling thread.
void ScaledHost(const Params& params, int64_t begin, int64_t end);

}  // namespace scaled_op

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace scaled_op {

cudaError_t LaunchScaled(cudaStream_t stream, const Params& params);

}  // namespace scaled_op
#endif
