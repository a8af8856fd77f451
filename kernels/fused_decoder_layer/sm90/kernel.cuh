// The kernel, for sm_90a: four GEMMs with a barrier of the grid between two. One persistent CTA per SM, launched
// cooperatively in clusters of two. All CTAs go through the tiles of each GEMM; a tile of split K is a cluster's, each
// of whose CTAs multiplies half of k.
//
//   GEMM      tile      split K   epilogue                                                        epilogue.cuh
//   o         64 x 64   yes       r = residual + c -> r, r * post_attention_norm, sums of r^2
//   gate_up   64 x 112  no        silu(gate * scale) * (up * scale); two accumulators
//   down      64 x 64   yes       as o, with input_norm
//   qkv       64 x 96   yes       c * scale -> out; without qkv_proj r * scale * input_norm instead
//                                 rotary: queries -> out; keys and values -> the cache            epilogue_rotary.cuh
//
// scale = 1 / sqrt(mean(r^2) + eps) of a row. So a norm needs no pass of its own: its weight is in the next GEMM's A,
// its scale in that GEMM's epilogue.
//
//   warp 0 to 3  consumers   c = A B^T (wgmma_ss), a stage in flight while the next is issued     mainloop_mma.cuh
//   warp 4       producer    A and B by TMA into a ring of 5 stages of 40 KB, over all GEMMs      mainloop_load.cuh
//   warp 5 to 7  norm        sums of r^2 -> norm_scale, after o and after down                    norm_scales.cuh
//
//   barrier            completed by                       waited for by
//   full               producer (1), and bytes of TMA     consumers
//   empty              consumers (4, one a warp)          producer
//   peer_full          the peer's consumers (128)         consumers, before they add the peer's part of a tile
//   peer_empty         the peer's consumers (128)         consumers, before they write their part of the next tile
//   kNormScalesReady   norm (96), consumers (128)         consumers, in the first epilogue of gate_up and qkv
//   kGatedTileReady    consumers (128)                    consumers, around the copy of a gated tile to memory
//   the grid's, three  all warps                          A of a GEMM is complete; square_sums are
#pragma once

#include <cooperative_groups.h>

#include "fused_decoder_layer/sm90/epilogue.cuh"
#include "fused_decoder_layer/sm90/epilogue_rotary.cuh"
#include "fused_decoder_layer/sm90/mainloop_load.cuh"
#include "fused_decoder_layer/sm90/norm_scales.cuh"

namespace fused_decoder_layer::sm90 {

// The consumers' way through the four GEMMs; `sync` is the grid's barrier.
template <typename T, bool kRotary, typename Sync>
__device__ inline void RunConsumers(const KernelParams& p, const Pipeline& pipeline, SharedStorage& shared, Sync sync) {
  uint32_t stage = 0, exchange = 0;
  GemmAddResidual<T>(p, p.o, p.post_attention_norm, pipeline, shared, stage, exchange);
  sync();
  GemmSiluAndMul<T>(p, pipeline, shared, stage);
  sync();
  GemmAddResidual<T>(p, p.down, p.input_norm, pipeline, shared, stage, exchange);
  if constexpr (kRotary) {
    const RotaryTile<T> rotary(p, TileScheduler<RotaryShape>(p.qkv).tile);
    sync();
    GemmQkvRotary<T>(p, pipeline, shared, stage, exchange, rotary);
  } else {
    sync();
    if (p.has_qkv)
      GemmQkv<T>(p, pipeline, shared, stage, exchange);
    else
      StoreNorm<T>(p, shared);
  }
}

// The producer's; its waits for A are the grid's barriers.
template <bool kRotary, typename Sync>
__device__ inline void RunProducers(const KernelParams& p, const Pipeline& pipeline, Sync sync) {
  uint32_t stage = 0;
  RunProducer<ResidualShape, false>(p.o, pipeline, stage, [] {});
  RunProducer<GatedShape, true>(p.gate_up, pipeline, stage, sync);
  RunProducer<ResidualShape, true>(p.down, pipeline, stage, sync);
  if constexpr (kRotary)
    RunProducer<RotaryShape, true>(p.qkv, pipeline, stage, sync);
  else if (p.has_qkv)
    RunProducer<QkvShape, true>(p.qkv, pipeline, stage, sync);
  else
    sync();
}

// kRotary: p.rotary counts, and there is a qkv_proj. Other GPUs' code is empty: it uses no shared memory, by which the
// host knows.
template <typename T, bool kRotary>
__global__ void __launch_bounds__(kThreads) FusedDecoderLayerKernel(const __grid_constant__ KernelParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char stages[];
  __shared__ SharedStorage shared;
  const Pipeline pipeline{shared_address(stages), shared_address(shared.full), shared_address(shared.empty),
                          static_cast<uint32_t>(RowsOfA(p.tokens) * kBlockK * 2)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(pipeline.Full(i), 1);
      mbarrier_init(pipeline.Empty(i), kConsumerThreads / kWarpSize);
    }
    mbarrier_init(shared_address(&shared.peer_full), kConsumerThreads);
    mbarrier_init(shared_address(&shared.peer_empty), kConsumerThreads);
    fence_mbarrier_init();
  }
  cluster_sync();

  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  const auto sync = [&] { grid.sync(); };
  if (threadIdx.x < kConsumerThreads) {
    RunConsumers<T, kRotary>(p, pipeline, shared, sync);
  } else if (threadIdx.x < kConsumerThreads + kWarpSize) {
    RunProducers<kRotary>(p, pipeline, sync);
  } else {
    sync();
    ComputeNormScales(p, shared);
    sync();
    sync();
    ComputeNormScales(p, shared);
  }
  // The peer may still read what this CTA wrote to its shared memory, or write to this CTA's.
  cluster_sync();
#endif
}

}  // namespace fused_decoder_layer::sm90
