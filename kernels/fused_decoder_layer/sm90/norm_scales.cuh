// The norm warps: from the sums of squares that the residual's epilogue stores to the norm's scale of each row.
#pragma once

#include "fused_decoder_layer/sm90/pipeline.cuh"

namespace fused_decoder_layer::sm90 {

// The norm warps' part, once square_sums are complete. Each takes every third row, and adds in the same order always.
__device__ inline void ComputeNormScales(const KernelParams& p, SharedStorage& shared) {
  constexpr int kRows = (kBlockM + kNormWarps - 1) / kNormWarps;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize - (kConsumerThreads / kWarpSize + 1);
  const int count = p.o.tiles;
  float sum[kRows] = {};
  for (int i = lane * 4; i < count; i += 4 * kWarpSize) {
    float4 four[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = warp + r * kNormWarps;
      four[r] = row < p.tokens ? __ldcg(reinterpret_cast<const float4*>(p.square_sums + row * count + i)) : float4{};
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] += (four[r].x + four[r].y) + (four[r].z + four[r].w);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) sum[r] += __shfl_xor_sync(kAllLanes, sum[r], lanes);
    const int row = warp + r * kNormWarps;
    if (lane == 0 && row < kBlockM) shared.norm_scale[row] = rsqrtf(sum[r] / p.down.n + p.eps);
  }
  __syncwarp();
  bar_arrive(kNormScalesReady, kNormScaleThreads);
}

}  // namespace fused_decoder_layer::sm90
