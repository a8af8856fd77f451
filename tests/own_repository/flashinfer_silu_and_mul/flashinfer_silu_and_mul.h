// out[r][c] = silu(x[r][c]) * x[r][columns + c], silu(v) = v / (1 + exp(-v))
//
//   x: [rows, 2 * columns], T, contiguous, read
//   out: [rows, columns], T, contiguous, written
//
// T is float, bfloat16 or float16; computed in float and rounded once. `columns` is a multiple of 8: a thread of
// FlashInfer's kernel loads 16 bytes.
// Test: devtool test flashinfer_silu_and_mul
#pragma once

#include <cstdint>

namespace flashinfer_silu_and_mul_op {

enum class Dtype { kFloat32, kBFloat16, kFloat16 };

struct Params {
  const void* x;
  void* out;
  int64_t rows;
  int64_t columns;
  Dtype dtype;
};

// Rows [begin, end) on the calling thread.
void SiluAndMulHost(const Params& params, int64_t begin, int64_t end);

}  // namespace flashinfer_silu_and_mul_op

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace flashinfer_silu_and_mul_op {

cudaError_t LaunchSiluAndMul(cudaStream_t stream, const Params& params);

}  // namespace flashinfer_silu_and_mul_op
#endif
