// The consumer warpgroup: multiplies what the producer loads.
#pragma once

#include "fused_decoder_layer/sm90/pipeline.cuh"

namespace fused_decoder_layer::sm90 {

// Issues the MMAs of a stage; of a gated tile `c` is the gate's and `up` is up's.
template <typename T, typename Shape, int kColumns, int kUpColumns>
__device__ inline void MultiplyStage(const Pipeline& pipeline, uint32_t i, bool adds, Accumulator<kColumns>& c,
                                     Accumulator<kUpColumns>& up) {
  const uint32_t stage = pipeline.Stage(i);
#pragma unroll
  for (int block = 0; block < Shape::kBlocksPerStage; ++block) {
    const uint32_t a_at = stage + block * pipeline.a_bytes;
    const uint32_t b_at = stage + Shape::kBlocksPerStage * kABytes + block * (Shape::kBlockBytes - kABytes);
    const pyxla::SwizzledTile<kBlockK> a{a_at}, b{b_at}, b_up{b_at + Shape::kBBytes};
#pragma unroll
    for (int k = 0; k < kBlockK; k += 16) {
      wgmma_ss<T>(c, a.KMajor(k), b.KMajor(k), adds || block > 0 || k > 0);
      if constexpr (Shape::kGated) wgmma_ss<T>(up, a.KMajor(k), b_up.KMajor(k), adds || block > 0 || k > 0);
    }
  }
}

// The consumers' part of a GEMM: for each of the CTA's tiles epilogue(tile, c, up), the accumulators in wgmma's order.
// One stage's MMAs run while the next stage's are issued.
template <typename T, typename Shape, typename Epilogue>
__device__ inline void RunGemm(const Gemm& gemm, const Pipeline& pipeline, uint32_t& stage, Epilogue epilogue) {
  const auto release = [&](uint32_t i) {
    if (threadIdx.x % kWarpSize == 0) mbarrier_arrive(pipeline.Empty(i));
  };
  const TileScheduler<Shape> scheduler(gemm);
  for (int tile = scheduler.tile; tile < gemm.tiles; tile += scheduler.stride) {
    Accumulator<Shape::kBlockN / 8> c;
    Accumulator<Shape::kGated ? Shape::kBlockN / 8 : 1> up;
    for (int i = 0; i < scheduler.stages; ++i, ++stage) {
      mbarrier_wait(pipeline.Full(stage), Pipeline::Phase(stage));
      warpgroup_fence_operand(c), warpgroup_fence_operand(up);
      warpgroup_arrive();
      MultiplyStage<T, Shape>(pipeline, stage, i > 0, c, up);
      warpgroup_commit_batch();
      warpgroup_fence_operand(c), warpgroup_fence_operand(up);
      warpgroup_wait<1>();
      if (i > 0) release(stage - 1);
    }
    warpgroup_wait<0>();
    release(stage - 1);
    warpgroup_fence_operand(c), warpgroup_fence_operand(up);
    epilogue(tile, c, up);
  }
}

}  // namespace fused_decoder_layer::sm90
