// Values that are not finite, and O to memory.
#pragma once

#include "paged_attention/prefill/softmax.cuh"
#include "pyxla/device/ptx/memory.cuh"

namespace paged_attention {
namespace prefill {

using namespace pyxla::ptx;

// Of 16-bit elements, two to a word: the exponent's bits, and its lowest one. An exponent of all ones overflows.
template <typename T>
struct Exponent {
  static constexpr uint32_t kOne = std::is_same_v<T, __half> ? 0x04000400 : 0x00800080;
  static constexpr uint32_t kMask = 0x80008000 - kOne;
  __device__ static uint32_t IsNonFinite(uint32_t word) { return ((word & kMask) + kOne) & 0x80008000; }
};

// Zeroes what is not finite of a key's values (a row in shared memory, chunk c at at(c)), so that P = 0 times it is
// zero. Returns whether there was any.
template <typename T, int kChunks, typename At>
__device__ inline bool ZeroNonFinite(At at) {
  uint32_t found = 0;
#pragma unroll 4
  for (int c = 0; c < kChunks; ++c) {
    uint32_t w[4], bad = 0;
    ld_shared_v4(w, at(c));
    for (uint32_t word : w) bad |= Exponent<T>::IsNonFinite(word);
    found |= bad;
    if (bad == 0) continue;
    for (uint32_t& word : w) word &= ~((Exponent<T>::IsNonFinite(word) >> 15) * 0xffff);
    st_shared_v4(at(c), w);
  }
  return found != 0;
}

// Adds the elements that ZeroNonFinite removed, from the cache, to the rows that see the key: they are their result.
template <typename Kv, int kColumns>
__device__ inline void AddNonFinite(float (&out)[kColumns][4], const Kv* values, const int (&positions)[2], int window,
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

// Normalizes O and stores it in units of 16 bytes: the four lanes that have a row's columns 2 * lane of four groups of
// 8 exchange them, so that each has one group.
template <typename T, int kColumns>
__device__ inline void StoreRows(const Params& p, const float (&out)[kColumns][4], const Row (&rows)[2],
                                 const Softmax& softmax, float factor, float value_scale) {
  static_assert(kColumns % 4 == 0, "four lanes take one group of columns each");
  const int lane = threadIdx.x % kWarpSize, d = static_cast<int>(p.head_dim);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float lse;
    const float2 m_l = softmax.MaximumAndSum(r, factor);
    const float normalizer = Normalizer(p, rows[r], m_l.x, m_l.y, lse) * value_scale;
    if (p.lse && rows[r].exists && lane % 4 == 0) p.lse[rows[r].index] = lse;
#pragma unroll
    for (int j = 0; j < kColumns; j += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = Pack<T>(out[j + i][2 * r] * normalizer, out[j + i][2 * r + 1] * normalizer);
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
