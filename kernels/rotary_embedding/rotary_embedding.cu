#include <algorithm>

#include "common/vector.cuh"
#include "rotary_embedding/rotary_embedding.h"

namespace rotary_embedding {

using pyxla::Vector;

constexpr int kThreads = 256;
// The grid's x dimension holds at most 2^31 - 1 blocks; a loop covers the rest.
constexpr int64_t kMaxBlocks = 1 << 30;

// The cosines or the sines of kCount pairs; NaN for a position out of range.
template <typename C, int kCount>
__device__ inline Vector<float, kCount> Factors(const Vector<C, kCount>* from, bool in_range) {
  Vector<float, kCount> to;
  Vector<C, kCount> loaded;
  if (in_range) loaded = *from;
#pragma unroll
  for (int i = 0; i < kCount; ++i) to.values[i] = in_range ? static_cast<float>(loaded.values[i]) : nanf("");
  return to;
}

// Items of a head: kCount pairs each, then (unless in place) vectors that stay as they are. A pair item is two vectors:
// the first and second elements of kCount pairs, or, if interleaved, kCount whole pairs one after the other.
template <typename T, typename C, int kCount, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) RotaryEmbeddingKernel(Params p, int64_t pair_items, int64_t items) {
  using TVector = Vector<T, kCount>;
  const int64_t all_heads = p.heads + p.kv_heads, head_vectors = p.d / kCount;
  const int64_t total = p.tokens * all_heads * items, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += stride) {
    const int64_t row = i / items, item = i - row * items;
    const int64_t token = row / all_heads, head = row - token * all_heads;
    const bool is_query = head < p.heads;
    const int64_t begin = (is_query ? token * p.heads + head : token * p.kv_heads + head - p.heads) * head_vectors;
    const auto* in = static_cast<const TVector*>(is_query ? p.query : p.key) + begin;
    auto* out = static_cast<TVector*>(is_query ? p.query_out : p.key_out) + begin;

    // What is not rotated.
    if (item >= pair_items) {
      const int64_t at = pair_items + item;  // behind two vectors for each pair item
      out[at] = pyxla::LoadOnce(in + at);
      continue;
    }

    // The two vectors, and the angles of the token's position.
    const int64_t first = kInterleaved ? 2 * item : item, second = kInterleaved ? first + 1 : item + pair_items;
    TVector vectors[2] = {pyxla::LoadOnce(in + first), pyxla::LoadOnce(in + second)};
    const int64_t position = p.wide_positions ? static_cast<const int64_t*>(p.positions)[token]
                                              : static_cast<const int32_t*>(p.positions)[token];
    const bool in_range = position >= 0 && position < p.max_position;
    const auto* cos_row = static_cast<const Vector<C, kCount>*>(p.cos_sin_cache) + position * 2 * pair_items + item;
    const Vector<float, kCount> cos = Factors(cos_row, in_range), sin = Factors(cos_row + pair_items, in_range);

    // Pair by pair.
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      constexpr int kStep = kInterleaved ? 2 : 1, kPartner = kInterleaved ? 1 : kCount;
      T& a = vectors[kStep * j / kCount].values[kStep * j % kCount];
      T& b = vectors[(kStep * j + kPartner) / kCount].values[(kStep * j + kPartner) % kCount];
      const float x = static_cast<float>(a), y = static_cast<float>(b);
      a = static_cast<T>(x * cos.values[j] - y * sin.values[j]);
      b = static_cast<T>(y * cos.values[j] + x * sin.values[j]);
    }
    out[first] = vectors[0];
    out[second] = vectors[1];
  }
}

template <typename T, typename C, int kCount>
static void LaunchVectors(cudaStream_t stream, const Params& p) {
  const bool in_place = p.query == p.query_out && p.key == p.key_out;
  const int64_t pair_items = p.rot_dim / 2 / kCount;
  const int64_t items = pair_items + (in_place ? 0 : (p.d - p.rot_dim) / kCount);
  const int64_t total = p.tokens * (p.heads + p.kv_heads) * items;
  if (total == 0) return;
  const auto blocks = static_cast<unsigned>(std::min((total + kThreads - 1) / kThreads, kMaxBlocks));
  if (p.interleaved) {
    RotaryEmbeddingKernel<T, C, kCount, true><<<blocks, kThreads, 0, stream>>>(p, pair_items, items);
  } else {
    RotaryEmbeddingKernel<T, C, kCount, false><<<blocks, kThreads, 0, stream>>>(p, pair_items, items);
  }
}

template <typename T, typename C>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  constexpr int kCount = pyxla::kVectorCount<T>;
  bool vectorized =
      p.d % kCount == 0 && p.rot_dim / 2 % kCount == 0 && pyxla::IsAligned(p.cos_sin_cache, sizeof(C) * kCount);
  for (const void* pointer :
       {p.query, p.key, static_cast<const void*>(p.query_out), static_cast<const void*>(p.key_out)}) {
    vectorized = vectorized && pyxla::IsAligned(pointer, pyxla::kVectorBytes);
  }
  if (vectorized) {
    LaunchVectors<T, C, kCount>(stream, p);
  } else {
    LaunchVectors<T, C, 1>(stream, p);
  }
  return cudaGetLastError();
}

cudaError_t LaunchRotaryEmbedding(cudaStream_t stream, const Params& params) {
  return pyxla::DispatchCuda(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return params.cache_dtype == params.dtype ? Launch<T, T>(stream, params) : Launch<T, float>(stream, params);
  });
}

}  // namespace rotary_embedding
