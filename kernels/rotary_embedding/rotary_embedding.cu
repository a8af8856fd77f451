#include "_rotary/rotary.cuh"
#include "pyxla/device/heads.cuh"
#include "rotary_embedding/rotary_embedding.h"

namespace rotary_embedding {

// At least the items of 32 and 8 heads of 128 (320), so that one CTA reads a token's angles.
constexpr int kMaxThreads = 512;
constexpr int kCtasPerSm = 3;  // at most 40 registers

// Items of a head: kCount pairs each, then (unless in place) vectors that stay as they are.
template <typename T, typename C, int kCount, bool kInterleaved>
__global__ void __launch_bounds__(kMaxThreads, kCtasPerSm)
    RotaryEmbeddingKernel(Params p, int64_t pair_items, int64_t items, unsigned item_blocks) {
  using TVector = pyxla::Vector<T, kCount>;
  const auto [token, head, item] = pyxla::PlaceOfThread(item_blocks);
  if (token >= p.tokens || head >= p.heads + p.kv_heads || item >= items) return;
  const bool is_query = head < p.heads;
  const int64_t begin = (is_query ? token * p.heads + head : token * p.kv_heads + head - p.heads) * (p.d / kCount);
  const auto* in = static_cast<const TVector*>(is_query ? p.query : p.key) + begin;
  auto* out = static_cast<TVector*>(is_query ? p.query_out : p.key_out) + begin;

  // What is not rotated.
  if (item >= pair_items) {
    const int64_t at = pair_items + item;  // after two vectors for each pair item
    out[at] = pyxla::LoadOnce(in + at);
    return;
  }

  // The two vectors, and the angles of the token's position, which is loaded first because they wait for it.
  const int64_t position = p.positions[token];
  pyxla::RotaryItem<T, kCount, kInterleaved> pairs(in, item, pair_items);
  __syncwarp();  // else the compiler lets the vectors wait for the position
  pairs.template Rotate<C>(p, position, item, pair_items);
  out[pairs.first] = pairs.vectors[0];
  out[pairs.second] = pairs.vectors[1];
}

template <typename T, typename C, int kCount>
static void LaunchVectors(cudaStream_t stream, const Params& p) {
  const bool in_place = p.query == p.query_out && p.key == p.key_out;
  const int64_t pair_items = pyxla::RotaryPairItems(p, kCount);
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
  bool vectorized = pyxla::IsRotaryVectorized(p, kCount);
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
    return params.table_dtype == params.dtype ? Launch<T, T>(stream, params) : Launch<T, float>(stream, params);
  });
}

}  // namespace rotary_embedding
