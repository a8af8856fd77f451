// The product of some rows of one expert with some rows of its weight, in stages.
#pragma once

#include <algorithm>

#include "grouped_product/tensor_core/rows.cuh"
#include "pyxla/device/ptx/cp_async.cuh"
#include "pyxla/device/ptx/ldmatrix.cuh"
#include "pyxla/device/ptx/mma.cuh"

namespace grouped_product::tensor_core {

/** A warp's part of the result: [16 columns, 8 rows] of each block. */
template <typename Shape>
using Sums = pyxla::ptx::F32x4[Shape::kBlocksN][Shape::kBlocksRows];

/** Where a chunk of a row is in a stage, in bytes. */
__device__ inline uint32_t ChunkOffset(int row, int chunk) {
  return row * kRowBytes + (chunk ^ row % kChunks) * kChunk * 2;
}

/** Copies the stages of a tile: kTileN rows of the weight, then `count` rows of x, up to a multiple of 16 zeros. */
template <typename T, typename Shape>
class Loader {
 public:
  template <typename Row>
  __device__ Loader(const KernelParams& p, int expert, const Row* rows, int count, int64_t column)
      : k_(p.k), chunk_(threadIdx.x % kChunks), row_(threadIdx.x / kChunks) {
    offset_ = ChunkOffset(row_, chunk_);
    weight_rows_ = static_cast<int>(min(p.n - column, static_cast<int64_t>(Shape::kTileN)));
    // Of padding no stage is loaded.
    weight_ = static_cast<const T*>(p.weight) + (expert * p.n + column) * p.k;
    x_rows_ = (count + 15) / 16 * 16;
#pragma unroll
    for (int i = 0; i < kXRows; ++i) {
      const int row = row_ + i * Shape::kRowStep;
      x_[i] = row < count ? static_cast<const T*>(p.x) + static_cast<int64_t>(rows[row] / p.rows_per_x) * p.k : nullptr;
    }
  }

  __device__ void Load(int64_t k_block, uint32_t stage) const {
    const int64_t at = k_block * kBlockK + chunk_ * kChunk;
    const bool has_k = at < k_;
#pragma unroll
    for (int i = 0; i < kWeightRows; ++i) {
      const int row = row_ + i * Shape::kRowStep;
      const bool copy = has_k && row < weight_rows_;
      pyxla::ptx::cp_async_zfill(To(stage, i), copy ? weight_ + row * k_ + at : weight_, copy);
    }
    stage += Shape::kTileN * kRowBytes;
#pragma unroll
    for (int i = 0; i < kXRows; ++i) {
      if (row_ + i * Shape::kRowStep >= x_rows_) break;
      const bool copy = has_k && x_[i] != nullptr;
      pyxla::ptx::cp_async_zfill(To(stage, i), copy ? x_[i] + at : weight_, copy);
    }
  }

 private:
  static constexpr int kWeightRows = Shape::kTileN / Shape::kRowStep, kXRows = Shape::kTileRows / Shape::kRowStep;

  __device__ uint32_t To(uint32_t stage, int i) const { return stage + offset_ + i * Shape::kRowStep * kRowBytes; }

  int64_t k_;
  int chunk_, row_, weight_rows_, x_rows_;
  uint32_t offset_;
  const T *weight_, *x_[kXRows];
};

/** sums += weight [columns, kBlockK] * x [rows, kBlockK]^T of a stage, for the warp's rows below `count`. */
template <typename T, typename Shape>
__device__ void MultiplyStage(uint32_t stage, int count, Sums<Shape>& sums) {
  using pyxla::ptx::B32x4;
  // Of the four matrices that ldmatrix_x4 loads, a lane gives the address of a row of matrix `lane / 8`: of an operand
  // [16 x 16] of the weight they are rows, then chunks apart, of two blocks of x chunks, then rows.
  const int lane = threadIdx.x % pyxla::kWarpSize, in_matrix = lane % 8, low = lane / 8 % 2, high = lane / 16;
  const int weight_row = Shape::WarpColumn() + low * 8 + in_matrix, x_row = Shape::WarpRow() + high * 8 + in_matrix;
  const uint32_t x = stage + Shape::kTileN * kRowBytes;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; chunk += 2) {
    B32x4 a[Shape::kBlocksN];
#pragma unroll
    for (int i = 0; i < Shape::kBlocksN; ++i) {
      pyxla::ptx::ldmatrix_x4(a[i], stage + ChunkOffset(weight_row + i * 16, chunk + high));
    }
#pragma unroll
    for (int j = 0; j < Shape::kBlocksRows; j += 2) {
      if (Shape::WarpRow() + j * 8 >= count) break;
      B32x4 b;
      pyxla::ptx::ldmatrix_x4(b, x + ChunkOffset(x_row + j * 8, chunk + low));
#pragma unroll
      for (int i = 0; i < Shape::kBlocksN; ++i) {
        pyxla::ptx::mma_m16n8k16<T>(sums[i][j], a[i], b[0], b[1]);
        pyxla::ptx::mma_m16n8k16<T>(sums[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

/** sums = weight * x^T over all of k, in the same order for every row. */
template <typename T, typename Shape>
__device__ void Multiply(const Loader<T, Shape>& loader, int64_t k_blocks, int count, uint32_t shared,
                         Sums<Shape>& sums) {
  constexpr int kAhead = Shape::kStages - 1;
  const auto stage_of = [&](int64_t k_block) {
    return shared + static_cast<uint32_t>(k_block % Shape::kStages) * Shape::kStageBytes;
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < k_blocks) loader.Load(i, stage_of(i));
    pyxla::ptx::cp_async_commit_group();
  }
  for (int64_t i = 0; i < k_blocks; ++i) {
    // This stage has arrived, and all warps are done with the last one, which the next copies replace.
    pyxla::ptx::cp_async_wait_group<kAhead - 1>();
    __syncthreads();
    if (i + kAhead < k_blocks) loader.Load(i + kAhead, stage_of(i + kAhead));
    pyxla::ptx::cp_async_commit_group();
    MultiplyStage<T, Shape>(stage_of(i), count, sums);
  }
}

}  // namespace grouped_product::tensor_core
