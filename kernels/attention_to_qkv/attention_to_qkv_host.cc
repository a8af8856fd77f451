#include <algorithm>
#include <cmath>

#include "attention_to_qkv/attention_to_qkv.h"
#include "common/dtype.h"
#include "common/multiversion.h"

namespace attention_to_qkv {
namespace {

// Values of a row that are multiplied at a time, in independent sums that the compiler keeps in vector registers.
constexpr int kLanes = 16, kChunk = 256;
static_assert(kGranule % kChunk == 0 && kChunk % kLanes == 0, "no remainder");

template <typename W>
PYXLA_INLINE void Columns(const float* __restrict x, const W* __restrict weight, float* __restrict out, int64_t tokens,
                          int64_t k, int64_t columns, int64_t begin, int64_t end) {
  float values[kChunk];
  double sums[kMaxTokens];
  for (int64_t column = begin; column < end; ++column) {
    std::fill(sums, sums + tokens, 0.0);
    for (int64_t at = 0; at < k; at += kChunk) {
      pyxla::Convert(weight + column * k + at, values, kChunk);
      for (int64_t token = 0; token < tokens; ++token) {
        const float* __restrict row = x + token * k + at;
        float lanes[kLanes] = {};
        for (int i = 0; i < kChunk; i += kLanes) {
          for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += row[i + lane] * values[i + lane];
        }
        for (float lane : lanes) sums[token] += lane;
      }
    }
    for (int64_t token = 0; token < tokens; ++token) out[token * columns + column] = static_cast<float>(sums[token]);
  }
}

}  // namespace

PYXLA_MULTIVERSION void MultiplyHost(pyxla::FloatType dtype, const float* x, const void* weight, float* out,
                                     int64_t tokens, int64_t k, int64_t columns, int64_t begin, int64_t end) {
  if (dtype == pyxla::FloatType::kFloat16) {
    Columns(x, static_cast<const pyxla::F16*>(weight), out, tokens, k, columns, begin, end);
  } else {
    Columns(x, static_cast<const pyxla::BF16*>(weight), out, tokens, k, columns, begin, end);
  }
}

void NormHost(const Params& p, const float* from, const void* weight, float* to) {
  pyxla::DispatchFloat(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t token = 0; token < p.tokens; ++token, from += p.hidden, to += p.hidden) {
      double squares = 0;
      for (int64_t i = 0; i < p.hidden; ++i) squares += static_cast<double>(from[i]) * from[i];
      const float scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(p.hidden) + p.eps));
      for (int64_t i = 0; i < p.hidden; ++i) to[i] = from[i] * scale * pyxla::ToFloat(static_cast<const T*>(weight)[i]);
    }
  });
}

}  // namespace attention_to_qkv
