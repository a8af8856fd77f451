// The producer warpgroup of the prefill kernel for sm_90a: its scheduler warp, its load warp and its fix-up warps.
#pragma once

#include "paged_attention/prefill/sm90_pipeline.cuh"

namespace paged_attention {
namespace prefill {
namespace sm90 {

// K and V are copied in runs: as many keys as are together in both a page and a KV tile. A lane has one run of the KV
// tile: its place in the cache, in units of 8 rows of keys; or why it is not read.
constexpr int kUnseen = -1, kWrongBlock = -2;

template <int kKeys>
__device__ inline int FindRun(const Params& p, const Tile& tile, int t, int run_keys) {
  const int run = static_cast<int>(threadIdx.x % kWarpSize) * run_keys, key = t * kKeys + run;
  if (run >= kKeys || key + run_keys <= tile.key_begin || key >= tile.key_end) return kUnseen;
  const int block_size = static_cast<int>(p.block_size),
            block = p.block_tables[tile.seq * p.max_blocks + key / block_size];
  if (block < 0 || block >= p.blocks) return kWrongBlock;
  return static_cast<int>((static_cast<int64_t>(block) * block_size + key % block_size) / 8);
}

// One warp. Keys of a page that does not exist become NaN, which reaches only the rows that see them; its values zero.
template <typename S>
__device__ inline void LoadRuns(const CUtensorMap& map, uint32_t full, uint32_t to, int run, int run_keys,
                                int first_row, int kv_head, bool are_values) {
  const int bytes = run_keys * S::kHeadDim * static_cast<int>(sizeof(typename S::Kv)), lane = threadIdx.x % kWarpSize;
  const uint32_t mine = to + lane * bytes;
  if (__any_sync(kAllLanes, run == kWrongBlock)) {
    const uint32_t fill = are_values ? 0 : 0x7fff7fff;  // NaN in each dtype
    for (int i = 0; i < bytes && run == kWrongBlock; i += 16) st_shared_v4(mine + i, fill);
    fence_proxy_async_shared();
  }
  const int runs = __popc(__ballot_sync(kAllLanes, run >= 0));
  if (lane == 0) mbarrier_arrive_expect_tx(full, runs * bytes);
  __syncwarp();
  if (run >= 0) tma_load_5d(map, mine, full, first_row + run, kv_head);
}

// The scheduler warp: takes work tiles and loads their Q. It is about a work tile ahead of the others, and no further,
// because no other CTA can compute a work tile that this one has taken.
template <typename S>
__device__ inline void RunScheduler(const Params& p, const Plan& plan, const Workspace& workspace,
                                    SharedStorage<S>& shared, uint32_t queries) {
  using T = typename S::T;
  constexpr int kHeadDim = S::kHeadDim, kChunks = kHeadDim / kChunk;
  PipelineState<> work_ring;
  PipelineState<1> begun_ring;
  PipelineState<S::kQueryStages> query_ring;
  const int lane = threadIdx.x % kWarpSize;
  const unsigned kv_heads = plan.kv_heads, total = shared.count * kv_heads;
  int shares = 0;
  for (unsigned index = blockIdx.x;;) {
    // Tiles at the end of a sequence see the most keys and come first.
    WorkTile work = {};
    work.is_last = index >= total;
    if (!work.is_last) {
      work.number = shared.count - 1 - static_cast<int>(index / kv_heads);
      work.tile = shared.tiles.Find(p, plan, work.number);
      work.kv_head = static_cast<int>(index % kv_heads);
      shares += work.tile.splits > 1;
    }
    mbarrier_wait(At(shared.work_empty, work_ring), work_ring.Phase() ^ 1);
    if (lane == 0) {
      shared.work[work_ring.Stage()] = work;
      mbarrier_arrive(At(shared.work_full, work_ring));
    }
    __syncwarp();
    ++work_ring.count;
    if (work.is_last) return;

    // Each lane finds one row in 32, and the others get it by a shuffle.
    mbarrier_wait(At(shared.q_empty, query_ring), query_ring.Phase() ^ 1);
    const SwizzledTile<kHeadDim> query{queries + query_ring.Stage() * S::kQueryBytes};
    for (int first = 0; first < S::kRows; first += kWarpSize) {
      const int64_t row_index = FindRow(plan, work.tile, work.kv_head, first + lane).index;
      const auto mine = reinterpret_cast<uint64_t>(static_cast<const T*>(p.query) + row_index * kHeadDim);
#pragma unroll 4
      for (int i = 0; i < kChunks; ++i) {
        const int row = (i * kWarpSize + lane) / kChunks, chunk = (i * kWarpSize + lane) % kChunks;
        const auto* from = reinterpret_cast<const T*>(__shfl_sync(kAllLanes, mine, row)) + chunk * kChunk;
        cp_async_zfill(query.At(first + row, chunk), from, true);
      }
    }
    cp_async_commit_group();
    mbarrier_wait(shared_address(&shared.loads_begun), begun_ring.Phase());
    ++begun_ring.count;
    const bool is_full = SharesMerges(shared) && shares == kMostShares;
    const unsigned taken = lane == 0 && !is_full ? atomicAdd(workspace.next, 1) : 0;
    cp_async_wait_group<0>();
    fence_proxy_async_shared();
    mbarrier_arrive(At(shared.q_full, query_ring));
    ++query_ring.count;
    index = is_full ? total : gridDim.x + __shfl_sync(kAllLanes, taken, 0);
  }
}

// The load warp: copies K and V in the order in which the consumers need them. A float8 cache's go to the ring of bytes
// at `values`' end.
template <typename S>
__device__ inline void RunProducer(const Params& p, const CUtensorMap& map, SharedStorage<S>& shared, uint32_t keys,
                                   uint32_t values, int run_keys) {
  PipelineState<> key_ring, value_ring, bytes_ring, work_ring;
  const int value_row = static_cast<int>(p.blocks * p.block_size / 8);
  for (;;) {
    const WorkTile work = NextWorkTile(shared, work_ring);
    const Tile& tile = work.tile;
    if (work.is_last) return;
    if (threadIdx.x % kWarpSize == 0) mbarrier_arrive(shared_address(&shared.loads_begun));

    const int first = tile.key_begin / S::kKeys, last = (tile.key_end - 1) / S::kKeys;
    int run = FindRun<S::kKeys>(p, tile, last, run_keys), previous = kUnseen;
    for (int t = last; t >= first - 1; --t) {
      const int next = t > first ? FindRun<S::kKeys>(p, tile, t - 1, run_keys) : kUnseen;
      if constexpr (S::kIsFloat8) {
        // K of KV tile t, and V of tile t + 1.
        const uint32_t bytes = values + kStages * S::kTileBytes;
        for (int are_values = t < first; are_values <= (t < last); ++are_values, ++bytes_ring.count) {
          mbarrier_wait(At(shared.bytes_empty, bytes_ring), bytes_ring.Phase() ^ 1);
          LoadRuns<S>(map, At(shared.bytes_full, bytes_ring), bytes + bytes_ring.Stage() * S::kBytesStage,
                      are_values ? previous : run, run_keys, are_values ? value_row : 0, work.kv_head, are_values);
        }
      } else {
        if (t >= first) {
          mbarrier_wait(At(shared.k_empty, key_ring), key_ring.Phase() ^ 1);
          LoadRuns<S>(map, At(shared.k_full, key_ring), keys + key_ring.Stage() * S::kTileBytes, run, run_keys, 0,
                      work.kv_head, false);
          ++key_ring.count;
        }
        if (t < last) {
          mbarrier_wait(At(shared.v_empty, value_ring), value_ring.Phase() ^ 1);
          LoadRuns<S>(map, At(shared.v_full, value_ring), values + value_ring.Stage() * S::kTileBytes, previous,
                      run_keys, value_row, work.kv_head, true);
          ++value_ring.count;
        }
      }
      previous = run;
      run = next;
    }
  }
}

// The fix-up warps: zero the values that not all rows of the tile may multiply, because 0 * NaN is NaN.
template <typename S>
__device__ inline void RunFixup(const Params& p, SharedStorage<S>& shared, uint32_t values) {
  constexpr int kHeadDim = S::kHeadDim, kChunks = kHeadDim / kChunk;
  const int thread = threadIdx.x - (S::kThreads - S::kFixupThreads);
  PipelineState<> work_ring, value_ring;
  for (;;) {
    const WorkTile work = NextWorkTile(shared, work_ring);
    const Tile& tile = work.tile;
    if (work.is_last) return;

    const int first = tile.key_begin / S::kKeys, last = (tile.key_end - 1) / S::kKeys;
    for (int t = last; t >= first; --t, ++value_ring.count) {
      mbarrier_wait(At(shared.v_full, value_ring), value_ring.Phase());
      if (!IsFull<S::kKeys>(p, tile, t)) {
        const SwizzledTile<kHeadDim> stage{values + value_ring.Stage() * S::kTileBytes};
        for (int row = thread; row < S::kKeys; row += S::kFixupThreads) {
          const int key = t * S::kKeys + row;
          const auto at = [&](int chunk) { return stage.At(row, chunk); };
          const bool is_seen = key >= tile.key_begin && key < tile.key_end;
          for (int chunk = 0; chunk < kChunks && !is_seen; ++chunk) st_shared_v4(at(chunk), 0);
          shared.has_nonfinite[value_ring.Stage()][row] = is_seen && ZeroNonFinite<typename S::T, kChunks>(at);
        }
        fence_proxy_async_shared();
        mbarrier_arrive(At(shared.v_fixed, value_ring));
      }
      mbarrier_arrive(At(shared.v_empty, value_ring));
    }
  }
}

}  // namespace sm90
}  // namespace prefill
}  // namespace paged_attention
