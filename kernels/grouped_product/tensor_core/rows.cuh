// Which rows go to which expert.
#pragma once

#include "grouped_product/tensor_core/shape.cuh"

namespace grouped_product::tensor_core {

/** Rows [first, first + count) of the order: one expert's, at most ManyRows::kTileRows. */
struct Tile {
  int expert, first, count, unused;
};

/** The rows sorted by their experts, in the workspace. */
struct Order {
  Tile* tiles;
  int* tile_count;
  int* rows;
};

/** What the kernels take. Rows without an expert go to expert `num_experts`, which gives zeros. */
struct KernelParams {
  const void *x, *weight, *bias;
  const int32_t* experts;
  void* out;
  int64_t n, k;
  int rows, rows_per_x, num_experts;
  unsigned column_tiles;
  bool has_cta_per_row;  // and column tile, not per expert: there are fewer rows than experts
  Order order;

  __device__ int ExpertOf(int row) const {
    const int expert = experts[row];
    return expert >= 0 && expert < num_experts ? expert : num_experts;
  }
};

/** Writes an expert's rows to `found`, ascending; returns their number. All threads of the CTA call it. */
template <int kThreads>
__device__ int ScanRows(const KernelParams& p, int expert, uint16_t* found) {
  constexpr int kWarps = kThreads / pyxla::kWarpSize;
  __shared__ int warp_counts[kWarps];
  const int warp = threadIdx.x / pyxla::kWarpSize, lane = threadIdx.x % pyxla::kWarpSize;
  const int per_thread = (p.rows + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * per_thread, p.rows), end = min(begin + per_thread, p.rows);

  int count = 0;
  for (int row = begin; row < end; ++row) count += p.ExpertOf(row) == expert;
  const int inclusive = pyxla::WarpInclusiveSum(count, lane);
  if (lane == pyxla::kWarpSize - 1) warp_counts[warp] = inclusive;
  __syncthreads();
  int at = inclusive - count, total = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    if (other < warp) at += warp_counts[other];
    total += warp_counts[other];
  }
  for (int row = begin; row < end; ++row) {
    if (p.ExpertOf(row) == expert) found[at++] = static_cast<uint16_t>(row);
  }
  __syncthreads();
  return total;
}

constexpr int kOrderThreads = 1024;

/** One CTA: a counting sort of the rows, and the tiles of each expert. The order within an expert is any. */
static __global__ void __launch_bounds__(kOrderThreads) OrderKernel(KernelParams p) {
  // Rows of each expert, then the place of its next row.
  __shared__ int places[kMaxExperts + 1];
  const int groups = p.num_experts + 1;
  for (int expert = threadIdx.x; expert < groups; expert += kOrderThreads) places[expert] = 0;
  __syncthreads();
  for (int row = threadIdx.x; row < p.rows; row += kOrderThreads) atomicAdd(&places[p.ExpertOf(row)], 1);
  __syncthreads();

  if (threadIdx.x < pyxla::kWarpSize) {
    const int lane = threadIdx.x;
    int first = 0, first_tile = 0;
    for (int base = 0; base < groups; base += pyxla::kWarpSize) {
      const int expert = base + lane, count = expert < groups ? places[expert] : 0;
      const int tiles = (count + ManyRows::kTileRows - 1) / ManyRows::kTileRows;
      const int rows_to_here = pyxla::WarpInclusiveSum(count, lane),
                tiles_to_here = pyxla::WarpInclusiveSum(tiles, lane);
      const int place = first + rows_to_here - count, tile = first_tile + tiles_to_here - tiles;
      if (expert < groups) places[expert] = place;
      for (int i = 0; i < tiles; ++i) {
        const int done = i * ManyRows::kTileRows;
        p.order.tiles[tile + i] = {expert, place + done, min(count - done, ManyRows::kTileRows), 0};
      }
      first += __shfl_sync(pyxla::kAllLanes, rows_to_here, pyxla::kWarpSize - 1);
      first_tile += __shfl_sync(pyxla::kAllLanes, tiles_to_here, pyxla::kWarpSize - 1);
    }
    if (lane == 0) *p.order.tile_count = first_tile;
  }
  __syncthreads();
  for (int row = threadIdx.x; row < p.rows; row += kOrderThreads) {
    p.order.rows[atomicAdd(&places[p.ExpertOf(row)], 1)] = row;
  }
}

}  // namespace grouped_product::tensor_core
