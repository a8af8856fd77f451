#include <algorithm>
#include <cmath>

#include "_rms_norm/rms_norm_host.h"
#include "fused_add_rms_norm/fused_add_rms_norm.h"

namespace fused_add_rms_norm {
namespace {

using pyxla::BF16;
using pyxla::F16;
using pyxla::FloatType;
using pyxla::kRmsNormChunk;

// sum[i] = x[i] + residual[i], and zeros after the last of `count`.
template <typename T>
PYXLA_INLINE void Add(const T* __restrict x, const T* __restrict residual, int64_t count, float* __restrict sum) {
  float addend[kRmsNormChunk];
  pyxla::Convert(x, sum, count);
  pyxla::Convert(residual, addend, count);
  for (int64_t i = 0; i < count; ++i) sum[i] += addend[i];
  std::fill(sum + count, sum + kRmsNormChunk, 0.0f);
}

template <typename T, typename W>
PYXLA_INLINE void Row(const T* __restrict x, T* __restrict residual, const W* __restrict weight, T* __restrict out,
                      int64_t hidden, double eps) {
  float values[kRmsNormChunk], factors[kRmsNormChunk];
  double sum = 0;
  for (int64_t begin = 0; begin < hidden; begin += kRmsNormChunk) {
    Add(x + begin, residual + begin, std::min<int64_t>(kRmsNormChunk, hidden - begin), values);
    sum += pyxla::SumOfChunkSquares(values);
  }

  const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(hidden) + eps));
  std::fill(factors, factors + kRmsNormChunk, 1.0f);
  for (int64_t begin = 0; begin < hidden; begin += kRmsNormChunk) {
    const int64_t count = std::min<int64_t>(kRmsNormChunk, hidden - begin);
    Add(x + begin, residual + begin, count, values);
    pyxla::Convert(values, residual + begin, count);
    if (weight != nullptr) pyxla::Convert(weight + begin, factors, count);
    for (int i = 0; i < kRmsNormChunk; ++i) values[i] *= scale * factors[i];
    pyxla::Convert(values, out + begin, count);
  }
}

template <typename T, typename W>
PYXLA_INLINE void Rows(const Params& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * p.hidden;
    Row(static_cast<const T*>(p.x) + at, static_cast<T*>(p.residual) + at, static_cast<const W*>(p.weight),
        static_cast<T*>(p.out) + at, p.hidden, p.eps);
  }
}

}  // namespace

PYXLA_MULTIVERSION void FusedAddRmsNormHost(const Params& params, int64_t begin, int64_t end) {
  const bool same_dtype = params.weight_dtype == params.dtype;
  switch (params.dtype) {
    case FloatType::kFloat32: return Rows<float, float>(params, begin, end);
    case FloatType::kBFloat16:
      return same_dtype ? Rows<BF16, BF16>(params, begin, end) : Rows<BF16, float>(params, begin, end);
    case FloatType::kFloat16:
      return same_dtype ? Rows<F16, F16>(params, begin, end) : Rows<F16, float>(params, begin, end);
  }
}

}  // namespace fused_add_rms_norm
