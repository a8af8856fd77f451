#include <algorithm>
#include <cmath>

#include "common/dtype.h"
#include "common/multiversion.h"
#include "rms_norm/rms_norm.h"

namespace rms_norm {
namespace {

using pyxla::BF16;
using pyxla::F16;

// A row is worked on in chunks, as float. A chunk's squares are added up by kLanes independent sums, which the compiler
// keeps in vector registers, and the chunks in double: at most kChunk / kLanes float additions in a row.
constexpr int kLanes = 16;
constexpr int kChunk = 512;
static_assert(kChunk % kLanes == 0, "a full chunk has no remainder");

PYXLA_INLINE double SumOfSquares(const float* values) {
  float lanes[kLanes] = {};
  for (int i = 0; i < kChunk; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane] * values[i + lane];
  }
  double sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

template <typename T, typename W>
PYXLA_INLINE void Row(const T* __restrict x, const W* __restrict weight, T* __restrict out, int64_t hidden,
                      double eps) {
  float values[kChunk], factors[kChunk];
  double sum = 0;
  for (int64_t begin = 0; begin < hidden; begin += kChunk) {
    const int64_t count = std::min<int64_t>(kChunk, hidden - begin);
    pyxla::Convert(x + begin, values, count);
    std::fill(values + count, values + kChunk, 0.0f);
    sum += SumOfSquares(values);
  }

  const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(hidden) + eps));
  std::fill(factors, factors + kChunk, 1.0f);
  for (int64_t begin = 0; begin < hidden; begin += kChunk) {
    const int64_t count = std::min<int64_t>(kChunk, hidden - begin);
    pyxla::Convert(x + begin, values, count);
    if (weight != nullptr) pyxla::Convert(weight + begin, factors, count);
    for (int i = 0; i < kChunk; ++i) values[i] *= scale * factors[i];
    pyxla::Convert(values, out + begin, count);
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
