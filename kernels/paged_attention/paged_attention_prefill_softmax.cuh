// From products to weights to rows of the output, in registers.
//
// A thread holds parts of two rows of a product, lane / 4 and lane / 4 + 8 of its warp's 16, and of these columns
// 2 * (lane % 4) and the next one of every 8: s[j] has two of each row of columns 8 * j to 8 * j + 7. Products of
// mma.sync and of wgmma lie alike.
#pragma once

#include <climits>

#include "paged_attention/paged_attention_mma.cuh"
#include "paged_attention/paged_attention_prefill.cuh"

namespace paged_attention {
namespace prefill {

constexpr int kChunk = 8;  // elements of 16 bytes
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The logits' way from products to exponents of two. Where only a positive scale stands between them the products are
// left as they are, and the scale goes into the exponent.
struct Logits {
  bool is_plain;
  float scale, soft_cap, factor;
  int window;

  __device__ explicit Logits(const Params& p)
      : is_plain(p.scale > 0 && p.soft_cap == 0 && !p.alibi_slopes),
        scale(p.scale * kLog2E),
        soft_cap(p.soft_cap * kLog2E),
        factor(is_plain ? scale : 1.0f),
        window(static_cast<int>(min(p.window, static_cast<int64_t>(INT32_MAX)))) {}

  // In place; positions and slopes of the two rows; key: position of the thread's first column.
  template <int kColumns>
  __device__ void Apply(float (&s)[kColumns][4], const int (&positions)[2], const float (&slopes)[2], int key) const {
    // cap * tanh(x) = cap - 2 cap / (e^2x + 1): off by a few units in the cap's last place, tanh.approx by 2^-11 of it.
    const float twice = soft_cap > 0 ? 2 * kLog2E * scale / soft_cap : 0.0f;
    const float bias[2] = {kLog2E * slopes[0], kLog2E * slopes[1]};
    const float distance[2] = {static_cast<float>(key - positions[0]), static_cast<float>(key - positions[1])};
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = s[j][i];
        x = soft_cap > 0 ? soft_cap - 2 * soft_cap * Reciprocal(Exp2(x * twice) + 1.0f) : x * scale;
        s[j][i] = x + bias[i / 2] * (distance[i / 2] + static_cast<float>(8 * j + i % 2));
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

// Running softmax of two rows: largest logit, and this thread's part of the sum of the weights.
struct Softmax {
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  // Logits become weights; `decay` is what earlier weights are to be multiplied by.
  template <int kColumns>
  __device__ void Add(float (&s)[kColumns][4], float factor, float (&decay)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) top = fmaxf(top, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      // A maximum of minus infinity stands for no key so far.
      const float base = top == -INFINITY ? 0.0f : top * factor;
      decay[r] = Exp2(max[r] * factor - base);
      max[r] = top;
      float weight = 0;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) weight += s[j][i] = Exp2(s[j][i] * factor - base);
      }
      sum[r] = sum[r] * decay[r] + weight;
    }
  }

  // Of row r: the factor of its output, and its lse; the sink joins here.
  __device__ float Finish(const Params& p, const Row& row, int r, float factor, float& lse) const {
    float total = sum[r], top = max[r] * factor, share = 1;
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    if (p.sinks) {
      const float sink = p.sinks[row.head] * kLog2E, both = fmaxf(top, sink);
      share = Exp2(top - both);
      total = total * share + Exp2(sink - both);
      top = both;
    }
    lse = (top + log2f(total)) * kLn2;
    return share / total;
  }
};

// Of 16-bit elements, two to a word: the exponent's bits, and its lowest one. An exponent of all ones overflows.
template <typename T>
struct Exponent {
  static constexpr uint32_t kOne = std::is_same_v<T, __half> ? 0x04000400 : 0x00800080;
  static constexpr uint32_t kMask = 0x80008000 - kOne;
  __device__ static uint32_t IsNotFinite(uint32_t word) { return ((word & kMask) + kOne) & 0x80008000; }
};

// Sees to it that values of a key (a row in shared memory, chunk c at at(c)) can be multiplied by zero weights:
// elements that are not finite become zero. Whether there were any.
template <typename T, int kChunks, typename At>
__device__ inline bool MakeFinite(At at) {
  uint32_t found = 0;
#pragma unroll 4
  for (int c = 0; c < kChunks; ++c) {
    uint32_t w[4], bad = 0;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(at(c)));
    for (uint32_t word : w) bad |= Exponent<T>::IsNotFinite(word);
    found |= bad;
    if (bad == 0) continue;
    for (uint32_t& word : w) word &= ~((Exponent<T>::IsNotFinite(word) >> 15) * 0xffff);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at(c)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
  }
  return found != 0;
}

// Adds the elements that MakeFinite took away, from the cache, where a row sees the key: they are its result.
template <typename T, int kColumns>
__device__ inline void AddNotFinite(float (&out)[kColumns][4], const T* values, const int (&positions)[2], int window,
                                    int key, int columns) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * j + 2 * (threadIdx.x % 4) + i % 2, distance = positions[i / 2] - key;
      if (column >= columns || distance < 0 || distance >= window) continue;
      const float value = static_cast<float>(values[column]);
      if (!isfinite(value)) out[j][i] += value;
    }
  }
}

// Rows of the output, from registers in units of 16 bytes: four lanes that hold a row's columns 2 * lane of four
// groups of 8 exchange them, so that each holds one group.
template <typename T, int kColumns>
__device__ inline void WriteRows(const Params& p, const float (&out)[kColumns][4], const Row (&rows)[2],
                                 const Softmax& softmax, float factor) {
  static_assert(kColumns % 4 == 0, "four lanes take one group of columns each");
  const int lane = threadIdx.x % kWarpSize, d = static_cast<int>(p.head_dim);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float lse;
    const float share = softmax.Finish(p, rows[r], r, factor, lse);
    if (p.lse && rows[r].exists && lane % 4 == 0) p.lse[rows[r].index] = lse;
#pragma unroll
    for (int j = 0; j < kColumns; j += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = Pack<T>(out[j + i][2 * r] * share, out[j + i][2 * r + 1] * share);
#pragma unroll
      for (int step = 1; step <= 2; step *= 2) {
        const bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i & step) continue;
          const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? words[i] : words[i | step], step);
          (upper ? words[i] : words[i | step]) = got;
        }
      }
      const int column = 8 * (j + lane % 4);
      if (rows[r].exists && column < d)
        *reinterpret_cast<uint4*>(static_cast<T*>(p.out) + rows[r].index * d + column) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

}  // namespace prefill
}  // namespace paged_attention
