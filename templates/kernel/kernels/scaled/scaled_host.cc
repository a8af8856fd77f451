#include "pyxla/host/dtype.h"
#include "scaled/scaled.h"

namespace scaled_op {
namespace {

template <typename T>
void Elements(const Params& params, int64_t piece_begin, int64_t piece_end) {
  const float factor = static_cast<float>(Factor(params));
  const T* x = static_cast<const T*>(params.x);
  T* out = static_cast<T*>(params.out);
  for (int64_t i = piece_begin; i < piece_end; ++i) {
    // replace: the formula
    float blend = pyxla::ToFloat(x[i]);
    out[i] = pyxla::FromFloat<T>(factor * blend);
  }
}

}  // namespace

void ScaledHost(const Params& params, int64_t begin, int64_t end) {
  switch (params.tensor_dtype) {
    case Dtype::kFloat32: return Elements<float>(params, begin, end);
    case Dtype::kBFloat16: return Elements<pyxla::BF16>(params, begin, end);
    case Dtype::kFloat16: return Elements<pyxla::F16>(params, begin, end);
  }
}

}  // namespace scaled_op
