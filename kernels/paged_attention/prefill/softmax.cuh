// From S to P, in registers.
//
// An accumulator of mma.sync or wgmma: a thread has parts of two rows, lane / 4 and lane / 4 + 8 of its warp's 16, and
// of these columns 2 * (lane % 4) and the next one of every 8: s[j] has two of each row of columns 8 * j to 8 * j + 7.
#pragma once

#include <climits>

#include "paged_attention/prefill/scheduler.cuh"

namespace paged_attention {
namespace prefill {

constexpr int kChunk = 8;  // elements of 16 bytes

// From Q K^T to exponents of two: scale, soft cap, ALiBi. If there is only a positive scale (is_plain), S stays as it
// is, and the softmax applies the scale as `factor`.
struct ScoreMod {
  bool is_plain, has_alibi;
  float scale;  // of a product of query and key: to the argument of tanh if there is a soft cap
  float soft_cap, factor;
  int window;

  // logit_scale: of a product of query and key as it is stored.
  __device__ ScoreMod(const Params& p, float logit_scale)
      : is_plain(logit_scale > 0 && p.soft_cap == 0 && !p.alibi_slopes),
        has_alibi(p.alibi_slopes != nullptr),
        scale(p.soft_cap > 0 ? logit_scale / p.soft_cap : logit_scale * kLog2E),
        soft_cap(p.soft_cap * kLog2E),
        factor(is_plain ? scale : 1.0f),
        window(static_cast<int>(min(p.window, static_cast<int64_t>(INT32_MAX)))) {}

  // In place; positions and slopes of the two rows; key: position of the thread's first column.
  template <int kColumns>
  __device__ void Apply(float (&s)[kColumns][4], const int (&positions)[2], const float (&slopes)[2], int key) const {
    if (soft_cap > 0) {
      ApplySoftCap(s);
    } else {
#pragma unroll
      for (int i = 0; i < 4 * kColumns; ++i) s[i / 4][i % 4] *= scale;
    }
    if (!has_alibi) return;
    const float bias[2] = {kLog2E * slopes[0], kLog2E * slopes[1]};
    const float distance[2] = {static_cast<float>(key - positions[0]), static_cast<float>(key - positions[1])};
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] += bias[i / 2] * (distance[i / 2] + static_cast<float>(8 * j + i % 2));
    }
  }

  // soft_cap * tanh(scale * s). Most logits are far below the cap, where a polynomial will do: it takes fewer
  // instructions than the exponential, which a warp computes only if one of its s needs it. The bits of an element are
  // the same either way.
  template <int kColumns>
  __device__ void ApplySoftCap(float (&s)[kColumns][4]) const {
    const float c3 = soft_cap * kTanh3, c5 = soft_cap * kTanh5, c7 = soft_cap * kTanh7, c9 = soft_cap * kTanh9;
    const auto series = [&](float x) {
      const float y = x * x;
      return x * fmaf(y, fmaf(y, fmaf(y, fmaf(y, c9, c7), c5), c3), soft_cap);
    };
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 4 * kColumns; ++i) {
      s[i / 4][i % 4] *= scale;
      largest = fmaxf(largest, fabsf(s[i / 4][i % 4]));
    }
    if (__all_sync(kAllLanes, largest < kTanhSeriesEnd)) {
#pragma unroll
      for (int i = 0; i < 4 * kColumns; ++i) s[i / 4][i % 4] = series(s[i / 4][i % 4]);
    } else {
#pragma unroll
      for (int i = 0; i < 4 * kColumns; ++i) {
        const float x = s[i / 4][i % 4];
        s[i / 4][i % 4] = fabsf(x) < kTanhSeriesEnd ? series(x) : soft_cap * Tanh(x);
      }
    }
  }

  template <int kColumns>
  __device__ void Mask(float (&s)[kColumns][4], const int (&positions)[2], int key) const {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int distance = positions[i / 2] - (key + 8 * j + i % 2);
        if (distance < 0 || distance >= window) s[j][i] = -INFINITY;
      }
    }
  }
};

// Running softmax of two rows: the largest S, and this thread's part of the sum of P.
struct Softmax {
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};

  // S becomes P; `rescale` is the factor of earlier P and O.
  template <int kColumns>
  __device__ void Online(float (&s)[kColumns][4], float factor, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = m[r];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) top = fmaxf(top, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      // A maximum of minus infinity: no key so far.
      const float base = top == -INFINITY ? 0.0f : top * factor;
      rescale[r] = Exp2(m[r] * factor - base);
      m[r] = top;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) sum += s[j][i] = Exp2(s[j][i] * factor - base);
      }
      l[r] = l[r] * rescale[r] + sum;
    }
  }

  // Of row r: m as an exponent of two, and l of all threads that have parts of the row.
  __device__ float2 MaximumAndSum(int r, float factor) const {
    float sum = l[r];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    return {m[r] * factor, sum};
  }
};

// The factor that normalizes a row's O, and its lse. Adds the sink.
__device__ inline float Normalizer(const Params& p, const Row& row, float m, float l, float& lse) {
  float rescale = 1;
  if (p.sinks) {
    const float sink = p.sinks[row.head] * kLog2E, both = fmaxf(m, sink);
    rescale = Exp2(m - both);
    l = l * rescale + Exp2(sink - both);
    m = both;
  }
  lse = (m + log2f(l)) * kLn2;
  return rescale / l;
}

}  // namespace prefill
}  // namespace paged_attention
