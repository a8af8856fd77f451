// out[i] = a[i] + alpha * b[i]
//
//   a, b: [n], T, contiguous, read
//   out:  [n], T, contiguous, written; may be a or b
//
// T is float, bfloat16 or float16; the sum is formed in float and rounded once. Any n that fits in 63 bits.
// Test: devtool test simple_add
#pragma once

#include <cstdint>

#include "pyxla/float_type.h"

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace simple_add {

cudaError_t LaunchSimpleAdd(cudaStream_t stream, pyxla::FloatType dtype, const void* a, const void* b, void* out,
                            int64_t n, float alpha);

}  // namespace simple_add
#endif
