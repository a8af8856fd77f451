// out[r][i] = gelu(x[r][i]) * x[r][d + i]
//   gelu(v) = v * P(v), P the standard normal distribution function; or its approximation by tanh,
//   gelu(v) = v / 2 * (1 + tanh(u)) = v / (1 + exp(-2 * u)), u = sqrt(2 / pi) * (v + 0.044715 * v^3)
//
// _gated/gated.h has x, out and what is formed how. Source: GEGLU, as there; Hendrycks and Gimpel, "Gaussian Error
// Linear Units", 2016, arXiv:1606.08415. Test: devtool test gelu_and_mul
#pragma once

#include "_gated/gated.h"

namespace gelu_and_mul {

enum class Approximation { kNone, kTanh };

struct Params : pyxla::GatedParams {
  Approximation approximation;
};

// sqrt(8 / pi): u's factor, times two.
constexpr float kTwiceTanhFactor = 1.5957691216057308f;
constexpr float kCubeFactor = 0.044715f;

// Elements [begin, end) of out on the calling thread.
void GeluAndMulHost(const Params& params, int64_t begin, int64_t end);

}  // namespace gelu_and_mul

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace gelu_and_mul {

cudaError_t LaunchGeluAndMul(cudaStream_t stream, const Params& params);

}  // namespace gelu_and_mul
#endif
