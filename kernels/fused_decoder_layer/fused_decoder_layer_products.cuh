// How a block multiplies: one warp loads tiles of weights and inputs into a ring in shared memory, a warpgroup
// multiplies them. The loading warp goes on with the next product's weights while others still finish the last one:
// what one block has in flight then lasts for the grid's barrier between two products.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "fused_decoder_layer/fused_decoder_layer.h"
#include "common/device/ptx/mbarrier.cuh"
#include "common/device/ptx/memory.cuh"
#include "common/device/ptx/tma.cuh"
#include "common/device/ptx/wgmma.cuh"
#include "common/device/swizzle.cuh"
#include "common/device/warp.cuh"

namespace fused_decoder_layer {

using namespace pyxla::ptx;
using pyxla::kWarpgroupSize;

constexpr int kBoxColumns = 64;                            // 128 bytes, which the swizzle permutes
constexpr int kInputBytes = kMaxTokens * kBoxColumns * 2;  // of one box
constexpr int kStages = 5, kStageBytes = 40 * 1024;
constexpr int kRingBytes = kStages * kStageBytes;

// out [tokens, columns] = x [tokens, k] * w [columns, k]^T
struct Product {
  CUtensorMap x;              // columns of a box, rows, boxes
  CUtensorMap w;              // columns of a box, rows, halves, heads, boxes
  int tiles, steps, columns;  // tiles of weight rows; steps of kBoxColumns of k
  int units;                  // of a head, if tiles are of heads
};

// Of a head, the rows of each half that are in one tile.
constexpr int kUnitRows = 16;

// kRows weight rows are a tile, kGated: with as many of `up`. kPair: a tile is two neighbouring blocks', each of which
// has half of k; else one block's. kOfHeads: a tile has rows of several heads, of each kUnitRows of its first half and
// the kUnitRows of its second half that they are rotated with.
template <int kRows_, bool kGated_, bool kPair_, bool kOfHeads_ = false>
struct Shape {
  static constexpr int kRows = kRows_;
  static constexpr bool kGated = kGated_, kPair = kPair_, kOfHeads = kOfHeads_;
  static constexpr int kHeads = kOfHeads ? kRows / (2 * kUnitRows) : 1, kHalves = kGated || kOfHeads ? 2 : 1;
  static constexpr int kRowsOfHalf = kOfHeads ? kUnitRows : kRows;
  static constexpr int kWeightBytes = kRows * kBoxColumns * 2;
  static constexpr int kStepBytes = kInputBytes + (kGated ? 2 : 1) * kWeightBytes;
  static constexpr int kSteps = kStageBytes / kStepBytes >= 2 ? 2 : 1;  // in a stage
  static_assert(kSteps * kStepBytes <= kStageBytes);
  static_assert(kGranule % ((kPair ? 2 : 1) * kSteps * kBoxColumns) == 0, "no part of k is left over");
};

// Addresses in shared memory.
struct Ring {
  uint32_t stages, full, empty;
  __device__ uint32_t Stage(uint32_t i) const { return stages + i % kStages * kStageBytes; }
  __device__ uint32_t Full(uint32_t i) const { return full + i % kStages * 8; }
  __device__ uint32_t Empty(uint32_t i) const { return empty + i % kStages * 8; }
  __device__ static uint32_t Parity(uint32_t i) { return i / kStages & 1; }
};

// The stages of a block's tiles, in order.
template <typename S>
struct Cursor {
  int tile, stride, first, count, i = 0;
  __device__ explicit Cursor(const Product& p) {
    const int parts = S::kPair ? 2 : 1;
    tile = blockIdx.x / parts;
    stride = gridDim.x / parts;
    count = p.steps / parts / S::kSteps;
    first = blockIdx.x % parts * count;
  }
  __device__ bool IsIn(const Product& p) const { return tile < p.tiles; }
  __device__ void Next() {
    if (++i == count) i = 0, tile += stride;
  }
  __device__ int Box() const { return (first + i) * S::kSteps; }
};

// A stage's weights, or inputs, are one copy: with more and smaller ones the copies themselves take longer than memory.
template <typename S>
__device__ inline void LoadWeights(const Product& p, const Ring& ring, const Cursor<S>& at, uint32_t i,
                                   uint64_t policy) {
  mbarrier_wait(ring.Empty(i), Ring::Parity(i) ^ 1);
  mbarrier_arrive_expect_tx(ring.Full(i), S::kSteps * S::kStepBytes);
  const int row = S::kOfHeads ? at.tile % p.units * kUnitRows : at.tile * S::kRows;
  const int head = S::kOfHeads ? at.tile / p.units * S::kHeads : 0;
  tma_load_5d(p.w, ring.Stage(i) + S::kSteps * kInputBytes, ring.Full(i), row, head, at.Box(), policy);
}

template <typename S>
__device__ inline void LoadInputs(const Product& p, const Ring& ring, const Cursor<S>& at, uint32_t i) {
  tma_load_3d(p.x, ring.Stage(i), ring.Full(i), at.Box());
}

// The loading warp's part. kWaits: `wait` returns when x is there, and until then as many weights as the ring holds are
// asked for.
template <typename S, bool kWaits, typename WaitForInputs>
__device__ inline void Load(const Product& p, const Ring& ring, uint32_t& stage, WaitForInputs wait) {
  const bool loads = threadIdx.x % 32 == 0;
  // Weights are read once: they must not push what blocks exchange out of L2.
  const uint64_t policy = createpolicy_evict_first();
  Cursor<S> weights(p), inputs(p);
  int ahead = 0;
  if (kWaits && loads) {
    for (; ahead < kStages && weights.IsIn(p); ++ahead, weights.Next())
      LoadWeights<S>(p, ring, weights, stage + ahead, policy);
  }
  __syncwarp();
  wait();
  if (loads) {
    // Other blocks wrote x; copies are another way to memory than their stores were.
    fence_proxy_async_global();
    for (int i = 0; i < ahead; ++i, inputs.Next()) LoadInputs<S>(p, ring, inputs, stage + i);
    stage += ahead;
    for (; weights.IsIn(p); weights.Next(), ++stage) {
      LoadWeights<S>(p, ring, weights, stage, policy);
      LoadInputs<S>(p, ring, weights, stage);
    }
  }
  __syncwarp();
}

// The warpgroup's part: of each of the block's tiles c [tokens x kRows], in wgmma's order, and d of `up`, if gated;
// then done(tile, c, d).
template <typename T, typename S, typename Done>
__device__ inline void Multiply(const Product& p, const Ring& ring, uint32_t& stage, Done done) {
  const auto release = [&](uint32_t i) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.Empty(i));
  };
  const Cursor<S> all(p);
  for (int tile = all.tile; tile < p.tiles; tile += all.stride) {
    float c[S::kRows / 8][4], d[S::kGated ? S::kRows / 8 : 1][4];
    for (int i = 0; i < all.count; ++i, ++stage) {
      mbarrier_wait(ring.Full(stage), Ring::Parity(stage));
      warpgroup_fence_operand(c), warpgroup_fence_operand(d);
      warpgroup_arrive();
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        const uint32_t inputs = ring.Stage(stage) + step * kInputBytes;
        const uint32_t weights = ring.Stage(stage) + S::kSteps * kInputBytes + step * (S::kStepBytes - kInputBytes);
        const pyxla::SwizzledTile<kBoxColumns> x{inputs}, w{weights}, up{weights + S::kWeightBytes};
#pragma unroll
        for (int k = 0; k < kBoxColumns; k += 16) {
          const bool adds = i > 0 || step > 0 || k > 0;
          wgmma_ss<T>(c, x.KMajor(k), w.KMajor(k), adds);
          if constexpr (S::kGated) wgmma_ss<T>(d, x.KMajor(k), up.KMajor(k), adds);
        }
      }
      warpgroup_commit_batch();
      warpgroup_fence_operand(c), warpgroup_fence_operand(d);
      warpgroup_wait<1>();
      if (i > 0) release(stage - 1);
    }
    warpgroup_wait<0>();
    release(stage - 1);
    warpgroup_fence_operand(c), warpgroup_fence_operand(d);
    done(tile, c, d);
  }
}

}  // namespace fused_decoder_layer
