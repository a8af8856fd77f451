#include <cmath>

#include "common/dtype.h"
#include "common/multiversion.h"
#include "rms_norm/rms_norm.h"

namespace rms_norm {
namespace {

using pyxla::BF16;
using pyxla::F16;

// Independent sums that the compiler keeps in vector registers: without them the order of the additions binds it.
constexpr int kLanes = 16;

template <typename T, typename W>
PYXLA_INLINE void Row(const T* x, const W* weight, T* out, int64_t hidden, double eps) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= hidden; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = pyxla::ToFloat(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (; i < hidden; ++i) {
    const double value = pyxla::ToFloat(x[i]);
    sum += value * value;
  }
  for (double lane : lanes) sum += lane;

  const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(hidden) + eps));
  if (weight == nullptr) {
    for (int64_t j = 0; j < hidden; ++j) out[j] = pyxla::FromFloat<T>(pyxla::ToFloat(x[j]) * scale);
  } else {
    for (int64_t j = 0; j < hidden; ++j) {
      out[j] = pyxla::FromFloat<T>(pyxla::ToFloat(x[j]) * scale * pyxla::ToFloat(weight[j]));
    }
  }
}

template <typename T, typename W>
PYXLA_INLINE void Rows(const Params& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    Row(static_cast<const T*>(p.x) + row * p.hidden, static_cast<const W*>(p.weight),
        static_cast<T*>(p.out) + row * p.hidden, p.hidden, p.eps);
  }
}

}  // namespace

PYXLA_MULTIVERSION void RmsNormHost(const Params& params, int64_t begin, int64_t end) {
  const bool wide_weight = params.weight_dtype == Dtype::kFloat32;
  switch (params.dtype) {
    case Dtype::kFloat32: return Rows<float, float>(params, begin, end);
    case Dtype::kBFloat16:
      return wide_weight ? Rows<BF16, float>(params, begin, end) : Rows<BF16, BF16>(params, begin, end);
    case Dtype::kFloat16:
      return wide_weight ? Rows<F16, float>(params, begin, end) : Rows<F16, F16>(params, begin, end);
  }
}

}  // namespace rms_norm
