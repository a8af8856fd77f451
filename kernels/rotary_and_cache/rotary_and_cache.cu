#include <type_traits>

#include "_kv_cache/kv_store.cuh"
#include "_rotary/rotary.cuh"
#include "pyxla/device/heads.cuh"
#include "rotary_and_cache/rotary_and_cache.h"

namespace rotary_and_cache {

using pyxla::Vector;

// A token of 48 heads of 128 is two CTAs of 192 threads: at 64 tokens there is one for each SM of an H200.
constexpr int kMaxThreads = 256;
// At most 40 registers; 64 where values are converted to float8, which would spill at 40.
template <bool kConverts>
constexpr int kCtasPerSm = kConverts ? 4 : 6;

// Items of a head: kCount pairs each, then vectors that stay as they are. Heads of values have the same items, so that
// all threads of a CTA have the same work, and stay as they are. The table is of C, the cache of K.
template <typename T, typename C, typename K, int kCount, bool kInterleaved>
__global__ void __launch_bounds__(kMaxThreads, kCtasPerSm<!std::is_same_v<T, K>>)
    RotaryAndCacheKernel(Params p, int64_t pair_items, int64_t items, unsigned item_blocks) {
  using TVector = Vector<T, kCount>;
  using KVector = Vector<K, kCount>;
  constexpr bool kConverts = !std::is_same_v<T, K>;
  const auto [token, head, item] = pyxla::PlaceOfThread(item_blocks);
  const int64_t all_heads = p.heads + 2 * p.kv_heads, head_vectors = p.d / kCount;
  if (token >= p.tokens || head >= all_heads || item >= items) return;
  const int64_t kv_head = head - p.heads;  // of the keys, then of the values; below 0 of queries
  const bool is_query = kv_head < 0, is_value = kv_head >= p.kv_heads;
  const auto* in = static_cast<const TVector*>(p.qkv) + (token * all_heads + head) * head_vectors;

  const bool scaled = kConverts && p.kv_scales != nullptr && !is_query;
  const float scale = scaled ? p.kv_scales[kv_head] : 1.0f;
  // Vectors of the head: into the result, or into the cache, where heads of values begin at kv_heads.
  const auto write = [&, token = token, head = head](int64_t slot, const auto& places, const TVector* vectors) {
    if (!is_query && (slot < 0 || slot >= p.slots)) return;
    const int64_t row =
        is_query ? token * p.heads + head : (is_value ? p.slots + slot - 1 : slot) * p.kv_heads + kv_head;
    if (!kConverts || is_query) {
      auto* to = static_cast<TVector*>(is_query ? p.query : p.cache) + row * head_vectors;
      for (int64_t place : places) to[place] = *vectors++;
    } else {
      auto* to = static_cast<KVector*>(p.cache) + row * head_vectors;
      for (int64_t place : places) pyxla::StoreToCache(to + place, *vectors++, scale);
    }
  };

  // What is not rotated of any head. All heads are loaded before position and slot, so that they do not wait for these.
  if (item >= pair_items) {
    const int64_t places[] = {pair_items + item};  // after two vectors for each pair item
    const TVector kept = pyxla::LoadOnce(in + places[0]);
    write(p.slot_mapping[token], places, &kept);
    return;
  }

  pyxla::RotaryItem<T, kCount, kInterleaved> pairs(in, item, pair_items);
  const int64_t position = p.positions[token], slot = p.slot_mapping[token];
  const int64_t places[] = {pairs.first, pairs.second};
  // Values are written here: where they met the rotated ones again, the compiler would take all vectors apart.
  if (is_value) {
    write(slot, places, pairs.vectors);
    return;
  }
  pairs.template Rotate<C>(p, position, item, pair_items);
  write(slot, places, pairs.vectors);
}

template <typename T, typename C, typename K, int kCount>
static void LaunchVectors(cudaStream_t stream, const Params& p) {
  const int64_t pair_items = pyxla::RotaryPairItems(p, kCount);
  const int64_t items = pair_items + (p.d - p.rot_dim) / kCount;
  if (p.tokens == 0 || items == 0) return;
  const pyxla::HeadsGrid grid = pyxla::HeadsGridOf(p.tokens, p.heads + 2 * p.kv_heads, items, kMaxThreads);
  if (p.interleaved) {
    RotaryAndCacheKernel<T, C, K, kCount, true>
        <<<grid.blocks, grid.threads, 0, stream>>>(p, pair_items, items, grid.item_blocks);
  } else {
    RotaryAndCacheKernel<T, C, K, kCount, false>
        <<<grid.blocks, grid.threads, 0, stream>>>(p, pair_items, items, grid.item_blocks);
  }
}

template <typename T, typename C, typename K>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  constexpr int kCount = pyxla::kVectorCount<T>;
  const bool vectorized = pyxla::IsRotaryVectorized(p, kCount) && pyxla::IsAligned(p.qkv, pyxla::kVectorBytes) &&
                          pyxla::IsAligned(p.query, pyxla::kVectorBytes) &&
                          pyxla::IsAligned(p.cache, sizeof(K) * kCount);
  if (vectorized) {
    LaunchVectors<T, C, K, kCount>(stream, p);
  } else {
    LaunchVectors<T, C, K, 1>(stream, p);
  }
  return cudaGetLastError();
}

cudaError_t LaunchRotaryAndCache(cudaStream_t stream, const Params& params) {
  return pyxla::DispatchCuda(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto with_table_of = [&](auto table) {
      using C = typename decltype(table)::type;
      return params.float8_cache ? Launch<T, C, __nv_fp8_e4m3>(stream, params) : Launch<T, C, T>(stream, params);
    };
    return params.table_dtype == params.dtype ? with_table_of(tag) : with_table_of(pyxla::CudaType<float>());
  });
}

}  // namespace rotary_and_cache
