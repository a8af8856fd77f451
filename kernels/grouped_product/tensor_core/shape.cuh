// The sizes of the kernels' tiles, and what the kernels take.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "pyxla/device/warp.cuh"

namespace grouped_product::tensor_core {

/** Elements of k in a stage: rows of 128 bytes, whose eight chunks of 16 are permuted by the row. */
constexpr int kBlockK = 64, kChunk = 8, kChunks = kBlockK / kChunk, kRowBytes = kBlockK * 2;

/** Up to so many rows each CTA finds those of its expert by itself. */
constexpr int kMaxScannedRows = 2048, kMaxScannedRowsPerExpert = 64;
/** The counters of the kernel that sorts more of them are in shared memory. */
constexpr int kMaxExperts = 4096;
/** Of an H200's SM. A CTA has besides its stages the rows of its expert, and what the system reserves. */
constexpr int kSmSharedBytes = 228 * 1024, kOtherSharedBytes = kMaxScannedRows * 2 + 2048;

/**
 * A CTA computes columns of some rows of one expert. Its warps divide both: a warp multiplies kBlocksN blocks of 16
 * rows of the weight by kBlocksRows blocks of eight rows of x, in stages that it receives by cp.async.
 */
template <int kWarpsN, int kWarpsRows, int kBlocksN_, int kBlocksRows_, int kStages_>
struct Shape {
  static constexpr int kBlocksN = kBlocksN_, kBlocksRows = kBlocksRows_, kStages = kStages_;
  static constexpr int kThreads = kWarpsN * kWarpsRows * pyxla::kWarpSize;
  static constexpr int kWarpN = kBlocksN * 16, kWarpRows = kBlocksRows * 8;
  static constexpr int kTileN = kWarpsN * kWarpN, kTileRows = kWarpsRows * kWarpRows;
  static constexpr int kStageBytes = (kTileN + kTileRows) * kRowBytes, kSharedBytes = kStages * kStageBytes;
  // That an SM has room for; for more than eight too few registers are left.
  static constexpr int kCtas = std::min(kSmSharedBytes / (kSharedBytes + kOtherSharedBytes), 8);
  // The result's rows in shared memory, longer than a tile so that two of them do not meet in the same banks.
  static constexpr int kOutStride = kTileN + kChunk;
  // A thread copies the same chunk of every kRowStep-th row.
  static constexpr int kRowStep = kThreads / kChunks;

  static_assert(kTileRows * kOutStride * 2 <= kSharedBytes, "the result replaces the stages");
  static_assert(kRowStep % 8 == 0, "the rows of a thread have one permutation");
  static_assert(kTileN % kRowStep == 0 && kTileRows % kRowStep == 0, "no remainder");
  static_assert(kBlocksRows % 2 == 0, "ldmatrix_x4 loads two blocks");

  static __device__ int WarpColumn() { return threadIdx.x / pyxla::kWarpSize % kWarpsN * kWarpN; }
  static __device__ int WarpRow() { return threadIdx.x / pyxla::kWarpSize / kWarpsN * kWarpRows; }
};

/** Decode: bound by the reading of the weights. */
template <typename Tuned>
using FewRows = Shape<4, 1, Tuned::kColumnBlocks, Tuned::kRowBlocks, Tuned::kStages>;
/** Prefill: bound by arithmetic. */
using ManyRows = Shape<4, 2, 2, 8, 3>;

}  // namespace grouped_product::tensor_core
