// The convert warps of the prefill kernel for sm_90a: of the bytes of a float8 cache, which the load warp has copied,
// they make the consumers' K and V.
#pragma once

#include "paged_attention/prefill/sm90_pipeline.cuh"

namespace paged_attention {
namespace prefill {
namespace sm90 {

// Converts K or V of a KV tile, sixteen bytes at a time. With kFixes, what not all rows of the tile may multiply
// becomes zero, as in RunFixup.
template <typename S, bool kFixes>
__device__ inline void ConvertStage(uint32_t bytes, uint32_t stage, int first_key, const Tile& tile,
                                    uint8_t (&has_nonfinite)[128]) {
  using T = typename S::T;
  constexpr int kLanes = S::kHeadDim / 16;  // of a row
  constexpr int kRows = S::kFixupThreads / kLanes;
  static_assert(S::kKeys % kRows == 0);
  static_assert(kRows % 8 == 0, "a thread's chunks are at the same place in each group of eight rows");
  const int thread = threadIdx.x % S::kFixupThreads, first_row = thread / kLanes, lane = thread % kLanes;
  // Eight lanes store at the same time: half of them their second chunk first, so that they use all banks.
  const bool is_swapped = lane >= 4;
  const SwizzledTile<S::kHeadDim> rows{stage};
  const uint32_t from = bytes + thread * 16;
  const uint32_t to[2] = {rows.At(first_row, 2 * lane + is_swapped), rows.At(first_row, 2 * lane + !is_swapped)};
#pragma unroll 4
  for (int i = 0; i < S::kKeys / kRows; ++i) {
    uint32_t sixteen[4], words[8];
    ld_shared_v4(sixteen, from + i * S::kFixupThreads * 16);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t four = is_swapped ? sixteen[(j / 2 + 2) % 4] : sixteen[j / 2];
      words[j] = E4m3x2To<T>(j % 2 == 0 ? four & 0xffff : four >> 16);
    }
    if constexpr (kFixes) {
      const int row = first_row + i * kRows, key = first_key + row;
      const bool is_seen = key >= tile.key_begin && key < tile.key_end;
      uint32_t found = 0;
#pragma unroll
      for (uint32_t& word : words) {
        const uint32_t non_finite = Exponent<T>::IsNonFinite(word);
        found |= non_finite;
        word = is_seen ? word & ~((non_finite >> 15) * 0xffff) : 0;
      }
      const unsigned lanes = __ballot_sync(kAllLanes, is_seen && found != 0);
      if (lane == 0) has_nonfinite[row] = (lanes >> threadIdx.x % kWarpSize & ((1u << kLanes) - 1)) != 0;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t chunk[4] = {words[4 * j], words[4 * j + 1], words[4 * j + 2], words[4 * j + 3]};
      st_shared_v4(to[j] + i * (kRows / 8) * rows.kGroupBytes, chunk);
    }
  }
}

template <typename S>
__device__ inline void RunConverter(const Params& p, SharedStorage<S>& shared, uint32_t keys, uint32_t values) {
  PipelineState<> work_ring, key_ring, value_ring, bytes_ring;
  for (;;) {
    const WorkTile work = NextWorkTile(shared, work_ring);
    const Tile& tile = work.tile;
    if (work.is_last) return;

    // K of KV tile t, or V of it, in the order of the copies.
    const auto convert = [&](int t, const uint64_t (&full)[kStages], const uint64_t (&empty)[kStages], uint32_t stages,
                             PipelineState<>& ring, bool fixes) {
      mbarrier_wait(At(shared.bytes_full, bytes_ring), bytes_ring.Phase());
      mbarrier_wait(At(empty, ring), ring.Phase() ^ 1);
      const uint32_t bytes = values + kStages * S::kTileBytes + bytes_ring.Stage() * S::kBytesStage;
      const uint32_t stage = stages + ring.Stage() * S::kTileBytes;
      if (fixes) {
        ConvertStage<S, true>(bytes, stage, t * S::kKeys, tile, shared.has_nonfinite[ring.Stage()]);
      } else {
        ConvertStage<S, false>(bytes, stage, t * S::kKeys, tile, shared.has_nonfinite[ring.Stage()]);
      }
      mbarrier_arrive(At(shared.bytes_empty, bytes_ring));
      fence_proxy_async_shared();
      mbarrier_arrive(At(full, ring));
      ++bytes_ring.count, ++ring.count;
    };
    const int first = tile.key_begin / S::kKeys, last = (tile.key_end - 1) / S::kKeys;
    for (int t = last; t >= first - 1; --t) {
      if (t >= first) convert(t, shared.k_full, shared.k_empty, keys, key_ring, false);
      if (t < last) {
        convert(t + 1, shared.v_full, shared.v_empty, values, value_ring, !IsFull<S::kKeys>(p, tile, t + 1));
      }
    }
  }
}

}  // namespace sm90
}  // namespace prefill
}  // namespace paged_attention
