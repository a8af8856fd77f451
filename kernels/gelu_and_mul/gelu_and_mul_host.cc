#include <cmath>

#include "_gated/gated_host.h"
#include "gelu_and_mul/gelu_and_mul.h"

namespace gelu_and_mul {

static float Gelu(float v) {
  constexpr float kSqrtHalf = 0.70710678118654752f;
  return 0.5f * v * std::erfc(-v * kSqrtHalf);
}

static float GeluTanh(float v) { return v / (1.0f + std::exp(-kTwiceTanhFactor * (v + kCubeFactor * v * v * v))); }

void GeluAndMulHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::GatedElementsOnHost(params, begin, end, params.approximation == Approximation::kNone ? Gelu : GeluTanh);
}

}  // namespace gelu_and_mul
