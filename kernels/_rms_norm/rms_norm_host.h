// The rows of rms_norm.h on the calling thread. An op calls it in a PYXLA_MULTIVERSION function of its own.
#pragma once

#include <algorithm>
#include <cmath>

#include "_rms_norm/rms_norm.h"
#include "pyxla/host/dtype.h"
#include "pyxla/host/multiversion.h"

namespace pyxla {

/** Independent sums of a chunk's squares, which the compiler keeps in vector registers. */
constexpr int kRmsNormLanes = 16;
/** Values of a row that are worked on at a time, as float; chunks are added up in double. At most kRmsNormChunk /
 * kRmsNormLanes float additions follow one another. */
constexpr int kRmsNormChunk = 512;
static_assert(kRmsNormChunk % kRmsNormLanes == 0, "a full chunk has no remainder");

/** Of `kRmsNormChunk` values. */
PYXLA_INLINE double SumOfChunkSquares(const float* values) {
  float lanes[kRmsNormLanes] = {};
  for (int i = 0; i < kRmsNormChunk; i += kRmsNormLanes) {
    for (int lane = 0; lane < kRmsNormLanes; ++lane) lanes[lane] += values[i + lane] * values[i + lane];
  }
  double sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

template <typename T, typename W>
PYXLA_INLINE void RmsNormRow(const T* __restrict x, const W* __restrict weight, T* __restrict out, int64_t hidden,
                             double eps) {
  float values[kRmsNormChunk], factors[kRmsNormChunk];
  double sum = 0;
  for (int64_t begin = 0; begin < hidden; begin += kRmsNormChunk) {
    const int64_t count = std::min<int64_t>(kRmsNormChunk, hidden - begin);
    Convert(x + begin, values, count);
    std::fill(values + count, values + kRmsNormChunk, 0.0f);
    sum += SumOfChunkSquares(values);
  }

  const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(hidden) + eps));
  std::fill(factors, factors + kRmsNormChunk, 1.0f);
  for (int64_t begin = 0; begin < hidden; begin += kRmsNormChunk) {
    const int64_t count = std::min<int64_t>(kRmsNormChunk, hidden - begin);
    Convert(x + begin, values, count);
    if (weight != nullptr) Convert(weight + begin, factors, count);
    for (int i = 0; i < kRmsNormChunk; ++i) values[i] *= scale * factors[i];
    Convert(values, out + begin, count);
  }
}

template <typename T, typename W>
PYXLA_INLINE void RmsNormRowsAs(const RmsNormParams& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    RmsNormRow(static_cast<const T*>(p.x) + row * p.hidden, static_cast<const W*>(p.weight),
               static_cast<T*>(p.out) + row * p.hidden, p.hidden, p.eps);
  }
}

/** Rows [begin, end). */
PYXLA_INLINE void RmsNormRowsOnHost(const RmsNormParams& params, int64_t begin, int64_t end) {
  const bool same_dtype = params.weight_dtype == params.dtype;
  switch (params.dtype) {
    case FloatType::kFloat32: return RmsNormRowsAs<float, float>(params, begin, end);
    case FloatType::kBFloat16:
      return same_dtype ? RmsNormRowsAs<BF16, BF16>(params, begin, end)
                        : RmsNormRowsAs<BF16, float>(params, begin, end);
    case FloatType::kFloat16:
      return same_dtype ? RmsNormRowsAs<F16, F16>(params, begin, end) : RmsNormRowsAs<F16, float>(params, begin, end);
  }
}

}  // namespace pyxla
