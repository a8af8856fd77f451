// The producer warp: fills the ring with A and B by TMA. It goes on with the next GEMM's B, the weights, while other
// CTAs still finish the last GEMM: what one CTA has in flight then lasts for the grid's barrier between the two.
#pragma once

#include "fused_decoder_layer/sm90/pipeline.cuh"

namespace fused_decoder_layer::sm90 {

// A stage's A, or B, is one copy: with more and smaller ones the copies take longer than memory.
template <typename Shape>
__device__ inline void LoadB(const Gemm& gemm, const Pipeline& pipeline, const TileScheduler<Shape>& at, uint32_t i,
                             uint64_t policy) {
  mbarrier_wait(pipeline.Empty(i), Pipeline::Phase(i) ^ 1);
  mbarrier_arrive_expect_tx(pipeline.Full(i),
                            Shape::kBlocksPerStage * (pipeline.a_bytes + Shape::kBlockBytes - kABytes));
  const int row = Shape::kRotary ? at.tile % gemm.tiles_per_head * kRotaryRows : at.tile * Shape::kBlockN;
  const int head = Shape::kRotary ? at.tile / gemm.tiles_per_head * Shape::kHeads : 0;
  tma_load_5d(gemm.b, pipeline.Stage(i) + Shape::kBlocksPerStage * kABytes, pipeline.Full(i), row, head, at.KBlock(),
              policy);
}

template <typename Shape>
__device__ inline void LoadA(const Gemm& gemm, const Pipeline& pipeline, const TileScheduler<Shape>& at, uint32_t i) {
  tma_load_3d(gemm.a, pipeline.Stage(i), pipeline.Full(i), at.KBlock());
}

// The producer's part of a GEMM. kWaits: A is complete when `wait_for_a` returns; before that as much of B as the ring
// holds is requested.
template <typename Shape, bool kWaits, typename WaitForA>
__device__ inline void RunProducer(const Gemm& gemm, const Pipeline& pipeline, uint32_t& stage, WaitForA wait_for_a) {
  const bool loads = threadIdx.x % kWarpSize == 0;
  // Weights are read once: they must not push what CTAs exchange out of L2.
  const uint64_t policy = createpolicy_evict_first();
  TileScheduler<Shape> b(gemm), a(gemm);
  int ahead = 0;
  if (kWaits && loads) {
    for (; ahead < kStages && b.HasTile(gemm); ++ahead, b.Advance())
      LoadB<Shape>(gemm, pipeline, b, stage + ahead, policy);
  }
  __syncwarp();
  wait_for_a();
  if (loads) {
    // Other CTAs wrote A by ordinary stores, and TMA is another proxy.
    fence_proxy_async_global();
    for (int i = 0; i < ahead; ++i, a.Advance()) LoadA<Shape>(gemm, pipeline, a, stage + i);
    stage += ahead;
    for (; b.HasTile(gemm); b.Advance(), ++stage) {
      LoadB<Shape>(gemm, pipeline, b, stage, policy);
      LoadA<Shape>(gemm, pipeline, b, stage);
    }
  }
  __syncwarp();
}

}  // namespace fused_decoder_layer::sm90
