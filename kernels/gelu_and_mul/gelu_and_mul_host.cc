#include <algorithm>
#include <cmath>

#include "common/dtype.h"
#include "gelu_and_mul/gelu_and_mul.h"

namespace gelu_and_mul {

static float Gelu(float v) {
  constexpr float kSqrtHalf = 0.70710678118654752f;
  return 0.5f * v * std::erfc(-v * kSqrtHalf);
}

static float GeluTanh(float v) { return v / (1.0f + std::exp(-kTwiceTanhFactor * (v + kCubeFactor * v * v * v))); }

void GeluAndMulHost(const Params& params, int64_t begin, int64_t end) {
  const auto activation = params.approximation == Approximation::kNone ? Gelu : GeluTanh;
  pyxla::DispatchFloat(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // From row to row; the piece may begin and end inside one.
    for (int64_t i = begin; i < end;) {
      const int64_t row = i / params.d, row_end = std::min(end, (row + 1) * params.d);
      const T* gate = static_cast<const T*>(params.x) + row * params.d;
      const T* up = gate + params.d;
      T* out = static_cast<T*>(params.out);
      for (; i < row_end; ++i) {
        const float value = pyxla::ToFloat(gate[i]);
        out[i] = pyxla::FromFloat<T>(activation(value) * pyxla::ToFloat(up[i]));
      }
    }
  });
}

}  // namespace gelu_and_mul
