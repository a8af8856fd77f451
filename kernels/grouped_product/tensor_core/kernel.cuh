// The kernels on tensor cores: a CTA multiplies rows of one expert with kTileN rows of its weight.
#pragma once

#include "grouped_product/tensor_core/mainloop.cuh"
#include "pyxla/device/vector.cuh"

namespace grouped_product::tensor_core {

/** Adds the bias to a warp's sums, rounds them, and writes them to shared memory: [kTileRows, kOutStride]. */
template <typename T, typename Shape>
__device__ void StoreToShared(const T* bias, int64_t columns, int count, const Sums<Shape>& sums, T* out) {
  const int lane = threadIdx.x % pyxla::kWarpSize;
#pragma unroll
  for (int i = 0; i < Shape::kBlocksN; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = Shape::WarpColumn() + i * 16 + half * 8 + lane / 4;
      const float offset = bias != nullptr && column < columns ? static_cast<float>(bias[column]) : 0.0f;
#pragma unroll
      for (int j = 0; j < Shape::kBlocksRows; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int row = Shape::WarpRow() + j * 8 + lane % 4 * 2 + k;
          if (row < count) out[row * Shape::kOutStride + column] = static_cast<T>(sums[i][j][half * 2 + k] + offset);
        }
      }
    }
  }
}

/** Columns from `column` on of at most kTileRows rows of an expert. All threads of the CTA call it. */
template <typename T, typename Shape, typename Row>
__device__ void ComputeTile(const KernelParams& p, int expert, const Row* rows, int count, int64_t column) {
  using Vector = pyxla::Vector<T, kChunk>;
  extern __shared__ __align__(128) unsigned char shared[];
  const bool is_padding = expert == p.num_experts;
  const int64_t k_blocks = is_padding ? 0 : (p.k + kBlockK - 1) / kBlockK;
  Sums<Shape> sums = {};
  Multiply(Loader<T, Shape>(p, expert, rows, count, column), k_blocks, count, pyxla::ptx::shared_address(shared), sums);
  pyxla::ptx::cp_async_wait_group<0>();
  __syncthreads();

  T* tile = reinterpret_cast<T*>(shared);
  const bool has_bias = p.bias != nullptr && !is_padding;
  const T* bias = has_bias ? static_cast<const T*>(p.bias) + expert * p.n + column : nullptr;
  StoreToShared<T, Shape>(bias, p.n - column, count, sums, tile);
  __syncthreads();

  constexpr int kVectors = Shape::kTileN / kChunk;
  for (int i = threadIdx.x; i < count * kVectors; i += Shape::kThreads) {
    const int row = i / kVectors, in_tile = i % kVectors * kChunk;
    const T* from = tile + row * Shape::kOutStride + in_tile;
    T* to = static_cast<T*>(p.out) + rows[row] * p.n + column + in_tile;
    if (p.n % kChunk == 0) {
      if (column + in_tile < p.n) *reinterpret_cast<Vector*>(to) = *reinterpret_cast<const Vector*>(from);
    } else {
      for (int j = 0; j < kChunk && column + in_tile + j < p.n; ++j) to[j] = from[j];
    }
  }
}

/** For few rows: each CTA finds its expert's. */
template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtas) ScannedKernel(KernelParams p) {
  __shared__ uint16_t rows[kMaxScannedRows];
  const int slot = blockIdx.x / p.column_tiles;
  const int64_t column = static_cast<int64_t>(blockIdx.x % p.column_tiles) * Shape::kTileN;
  const int expert = p.has_cta_per_row ? p.ExpertOf(slot) : slot;
  const int count = ScanRows<Shape::kThreads>(p, expert, rows);
  // Another CTA has the rows of this one's expert.
  if (p.has_cta_per_row && rows[0] != slot) return;
  for (int first = 0; first < count; first += Shape::kTileRows) {
    // The last rows have left shared memory.
    if (first > 0) __syncthreads();
    ComputeTile<T, Shape>(p, expert, rows + first, min(count - first, Shape::kTileRows), column);
  }
}

/** For many rows, in the order of OrderKernel. */
template <typename T>
__global__ void __launch_bounds__(ManyRows::kThreads, ManyRows::kCtas) SortedKernel(KernelParams p) {
  const unsigned place = blockIdx.x / p.column_tiles;
  const int64_t column = static_cast<int64_t>(blockIdx.x % p.column_tiles) * ManyRows::kTileN;
  if (place >= static_cast<unsigned>(*p.order.tile_count)) return;
  const Tile tile = p.order.tiles[place];
  ComputeTile<T, ManyRows>(p, tile.expert, p.order.rows + tile.first, tile.count, column);
}

}  // namespace grouped_product::tensor_core
