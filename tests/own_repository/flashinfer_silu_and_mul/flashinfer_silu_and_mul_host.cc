#include <cmath>

#include "flashinfer_silu_and_mul/flashinfer_silu_and_mul.h"
#include "pyxla/host/dtype.h"

namespace flashinfer_silu_and_mul_op {
namespace {

template <typename T>
void Rows(const Params& params, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(params.x) + row * 2 * params.columns;
    T* out = static_cast<T*>(params.out) + row * params.columns;
    for (int64_t i = 0; i < params.columns; ++i) {
      const float gate = pyxla::ToFloat(x[i]);
      out[i] = pyxla::FromFloat<T>(gate / (1 + std::exp(-gate)) * pyxla::ToFloat(x[params.columns + i]));
    }
  }
}

}  // namespace

void SiluAndMulHost(const Params& params, int64_t begin, int64_t end) {
  switch (params.dtype) {
    case Dtype::kFloat32: return Rows<float>(params, begin, end);
    case Dtype::kBFloat16: return Rows<pyxla::BF16>(params, begin, end);
    case Dtype::kFloat16: return Rows<pyxla::F16>(params, begin, end);
  }
}

}  // namespace flashinfer_silu_and_mul_op
