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

// The norm of a row. Its elements are read twice, as a row need not fit into the cache's first level.
template <typename T, typename W, typename Row>
PYXLA_INLINE void RmsNormRow(const Row& row, const W* __restrict weight, T* __restrict out, int64_t hidden,
                             double eps) {
  float values[kRmsNormChunk], factors[kRmsNormChunk];
  double sum = 0;
  for (int64_t begin = 0; begin < hidden; begin += kRmsNormChunk) {
    const int64_t count = std::min<int64_t>(kRmsNormChunk, hidden - begin);
    row.Load(begin, count, values);
    std::fill(values + count, values + kRmsNormChunk, 0.0f);
    sum += SumOfChunkSquares(values);
  }

  const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(hidden) + eps));
  std::fill(factors, factors + kRmsNormChunk, 1.0f);
  for (int64_t begin = 0; begin < hidden; begin += kRmsNormChunk) {
    const int64_t count = std::min<int64_t>(kRmsNormChunk, hidden - begin);
    row.Load(begin, count, values);
    row.Keep(begin, count, values);
    if (weight != nullptr) Convert(weight + begin, factors, count);
    for (int i = 0; i < kRmsNormChunk; ++i) values[i] *= scale * factors[i];
    Convert(values, out + begin, count);
  }
}

template <template <typename> class Row, typename T, typename W, typename Params>
PYXLA_INLINE void RmsNormRowsAs(const Params& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * p.hidden;
    RmsNormRow(Row<T>{p, at}, static_cast<const W*>(p.weight), static_cast<T*>(p.out) + at, p.hidden, p.eps);
  }
}

/** The rows of x, as they are. */
template <typename T>
struct RmsNormOperand {
  const RmsNormParams& p;
  int64_t at;

  PYXLA_INLINE void Load(int64_t begin, int64_t count, float* values) const {
    Convert(static_cast<const T*>(p.x) + at + begin, values, count);
  }
  PYXLA_INLINE void Keep(int64_t, int64_t, const float*) const {}
};

/**
 * Rows [begin, end). A `Row<T>{params, at}` gives the elements of the row that begins at element `at`: Load as float,
 * and Keep gets them before they are scaled, to store what Load has added up.
 */
template <template <typename> class Row, typename Params>
PYXLA_INLINE void RmsNormRowsOnHost(const Params& params, int64_t begin, int64_t end) {
  const bool same_dtype = params.weight_dtype == params.dtype;
  switch (params.dtype) {
    case FloatType::kFloat32: return RmsNormRowsAs<Row, float, float>(params, begin, end);
    case FloatType::kBFloat16:
      return same_dtype ? RmsNormRowsAs<Row, BF16, BF16>(params, begin, end)
                        : RmsNormRowsAs<Row, BF16, float>(params, begin, end);
    case FloatType::kFloat16:
      return same_dtype ? RmsNormRowsAs<Row, F16, F16>(params, begin, end)
                        : RmsNormRowsAs<Row, F16, float>(params, begin, end);
  }
}

}  // namespace pyxla
