#include "common/heads.cuh"
#include "common/vector.cuh"
#include "rotary_embedding/rotary_embedding.h"

namespace rotary_embedding {

using pyxla::Vector;

// At least the items of 32 and 8 heads of 128 (320), so that one block reads a token's angles.
constexpr int kMaxThreads = 512;
constexpr int kBlocksAtOnce = 3;  // at most 40 registers

// The cosines or the sines of kCount pairs, from kParts places of a row of the table.
template <typename C, int kCount, int kParts>
struct Factors {
  static constexpr int kSize = kCount / kParts;
  Vector<C, kSize> parts[kParts];

  __device__ void Load(const Vector<C, kSize>* from, int64_t step) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) parts[i] = from[i * step];
  }
  __device__ float operator[](int i) const { return static_cast<float>(parts[i / kSize].values[i % kSize]); }
};

// Items of a head: kCount pairs each, then (unless in place) vectors that stay as they are. A pair item is two vectors:
// the first and second elements of kCount pairs, or, if interleaved, kCount / 2 whole pairs each. Neighbouring threads
// access neighbouring vectors; only if a vector is one element, two that are interleaved are next to each other.
template <typename T, typename C, int kCount, bool kInterleaved>
__global__ void __launch_bounds__(kMaxThreads, kBlocksAtOnce)
    RotaryEmbeddingKernel(Params p, int64_t pair_items, int64_t items, unsigned item_blocks) {
  using TVector = Vector<T, kCount>;
  const auto [token, head, item] = pyxla::PlaceOfThread(item_blocks);
  if (token >= p.tokens || head >= p.heads + p.kv_heads || item >= items) return;
  const bool is_query = head < p.heads;
  const int64_t begin = (is_query ? token * p.heads + head : token * p.kv_heads + head - p.heads) * (p.d / kCount);
  const auto* in = static_cast<const TVector*>(is_query ? p.query : p.key) + begin;
  auto* out = static_cast<TVector*>(is_query ? p.query_out : p.key_out) + begin;

  // What is not rotated.
  if (item >= pair_items) {
    const int64_t at = pair_items + item;  // behind two vectors for each pair item
    out[at] = pyxla::LoadOnce(in + at);
    return;
  }

  // The two vectors, and the angles of the token's position, which is loaded first because they wait for it.
  const int64_t position = p.wide_positions ? static_cast<const int64_t*>(p.positions)[token]
                                            : static_cast<const int32_t*>(p.positions)[token];
  constexpr bool kAdjacent = kInterleaved && kCount == 1;
  const int64_t first = kAdjacent ? 2 * item : item, second = kAdjacent ? first + 1 : item + pair_items;
  TVector vectors[2] = {pyxla::LoadOnce(in + first), pyxla::LoadOnce(in + second)};
  constexpr int kParts = kInterleaved && kCount > 1 ? 2 : 1;  // an interleaved vector holds half of the pairs
  Factors<C, kCount, kParts> cos, sin;
  __syncwarp();  // else the compiler lets the vectors wait for the position
  const bool in_range = position >= 0 && position < p.max_position;
  if (in_range) {
    const auto* row =
        static_cast<const Vector<C, kCount / kParts>*>(p.cos_sin_cache) + position * 2 * kParts * pair_items;
    cos.Load(row + item, pair_items);
    sin.Load(row + kParts * pair_items + item, pair_items);
  }

  // Pair by pair; a position out of range makes both of a pair NaN.
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    constexpr int kStep = kInterleaved ? 2 : 1, kPartner = kInterleaved ? 1 : kCount;
    T& a = vectors[kStep * j / kCount].values[kStep * j % kCount];
    T& b = vectors[(kStep * j + kPartner) / kCount].values[(kStep * j + kPartner) % kCount];
    const float x = static_cast<float>(a), y = static_cast<float>(b), c = in_range ? cos[j] : nanf("");
    a = static_cast<T>(x * c - y * sin[j]);
    b = static_cast<T>(y * c + x * sin[j]);
  }
  out[first] = vectors[0];
  out[second] = vectors[1];
}

template <typename T, typename C, int kCount>
static void LaunchVectors(cudaStream_t stream, const Params& p) {
  const bool in_place = p.query == p.query_out && p.key == p.key_out;
  const int64_t pair_items = p.rot_dim / 2 / kCount;
  const int64_t items = pair_items + (in_place ? 0 : (p.d - p.rot_dim) / kCount);
  const int64_t heads = p.heads + p.kv_heads;
  if (p.tokens == 0 || heads == 0 || items == 0) return;
  const pyxla::HeadsGrid grid = pyxla::HeadsGridOf(p.tokens, heads, items, kMaxThreads);
  if (p.interleaved) {
    RotaryEmbeddingKernel<T, C, kCount, true>
        <<<grid.blocks, grid.threads, 0, stream>>>(p, pair_items, items, grid.item_blocks);
  } else {
    RotaryEmbeddingKernel<T, C, kCount, false>
        <<<grid.blocks, grid.threads, 0, stream>>>(p, pair_items, items, grid.item_blocks);
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
