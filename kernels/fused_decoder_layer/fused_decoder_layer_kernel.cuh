// The kernel: one block per multiprocessor, in pairs, goes through four products with a barrier of the grid between.
//
//   o_proj        tiles of pairs  r = residual + product; to memory: r, r * post_attention_norm, sums of r^2
//   gate_up_proj  tiles of blocks silu(gate) * up, both times 1 / sqrt(mean(r^2) + eps); to memory
//   down_proj     tiles of pairs  as o_proj, with input_norm
//   qkv_proj      tiles of pairs  times 1 / sqrt(mean(r^2) + eps): out; without qkv_proj r is, and input_norm;
//                                 as heads: rotated, and into the cache
//
// So a norm needs no step of its own: its weight is in what is multiplied, its scale is put on the product.
#pragma once

#include <cooperative_groups.h>

#include "_gated/gated.cuh"
#include "fused_decoder_layer/fused_decoder_layer_block.cuh"
#include "fused_decoder_layer/fused_decoder_layer_heads.cuh"

namespace fused_decoder_layer {

// The scale warps' part, once what they read is there: each takes every third row, in one order always.
__device__ inline void FormScales(const DeviceParams& p, Shared& shared) {
  constexpr int kRows = (kMaxTokens + kScaleWarps - 1) / kScaleWarps;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - (kComputers / 32 + 1), count = p.o.tiles;
  float sum[kRows] = {};
  for (int i = lane * 4; i < count; i += 128) {
    float4 four[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = warp + r * kScaleWarps;
      four[r] = row < p.tokens ? __ldcg(reinterpret_cast<const float4*>(p.squares + row * count + i)) : float4{};
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] += (four[r].x + four[r].y) + (four[r].z + four[r].w);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sum[r] += __shfl_xor_sync(~0u, sum[r], lanes);
    const int row = warp + r * kScaleWarps;
    if (lane == 0 && row < kMaxTokens) shared.scale[row] = rsqrtf(sum[r] / p.down.columns + p.eps);
  }
  __syncwarp();
  bar_arrive(kScalesAreThere, kWaitForScales);
}

// residual += product; scaled = residual * weight; and the sums of squares.
template <typename T>
__device__ inline void AddToResidual(const DeviceParams& p, const Product& product, const void* weight,
                                     const Ring& ring, Shared& shared, uint32_t& stage, uint32_t& turn) {
  constexpr int kColumns = AddShape::kRows / 8;
  const Place place;
  const int row = place.own_row;
  unsigned old[kColumns], norm[kColumns];
  const auto load = [&](int tile) {
    const int first = tile * AddShape::kRows + place.column;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      norm[j] = LoadBits<T>(weight, first + j * 8);
      old[j] = row < p.tokens ? LoadBits<T>(p.residual, int64_t{row} * product.columns + first + j * 8) : 0;
    }
  };
  // The first tile's, long before they are added.
  const Cursor<AddShape> begin(product);
  bool is_first = true;
  if (begin.IsIn(product)) load(begin.tile);
  Multiply<T, AddShape>(product, ring, stage, [&](int tile, const float (&c)[kColumns][4], auto&) {
    if (!is_first) load(tile);
    is_first = false;
    float2 sums[kColumns];
    AddPeers(c, sums, shared, turn);
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (row >= p.tokens) continue;
      const int64_t at = int64_t{row} * product.columns + tile * AddShape::kRows + j * 8 + place.column;
      const float2 was = AsTwo<T>(old[j]), times = AsTwo<T>(norm[j]);
      const float2 sum = StoreTwo<T>(p.residual, at, was.x + sums[j].x, was.y + sums[j].y);
      StoreTwo<T>(p.scaled, at, sum.x * times.x, sum.y * times.y);
      squares += sum.x * sum.x + sum.y * sum.y;
    }
    squares += __shfl_xor_sync(~0u, squares, 1);
    squares += __shfl_xor_sync(~0u, squares, 2);
    if (place.lane % 4 == 0 && row < p.tokens) p.squares[row * product.tiles + tile] = squares;
  });
}

// gated = silu(gate * scale) * (up * scale)
template <typename T>
__device__ inline void Gate(const DeviceParams& p, const Ring& ring, Shared& shared, uint32_t& stage) {
  constexpr int kColumns = GateShape::kRows / 8, kPitch = GateShape::kRows + 8;
  const Place place;
  bool has_scales = false;
  Multiply<T, GateShape>(p.gate_up, ring, stage, [&](int tile, auto& gate, auto& up) {
    // Also: the tile before, if any, has left shared memory.
    if (has_scales)
      bar_sync(kTileIsThere, kComputers);
    else
      bar_sync(kScalesAreThere, kWaitForScales);
    has_scales = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = place.row + 8 * i;
      const float scale = shared.scale[row];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float x = gate[j][2 * i] * scale, y = gate[j][2 * i + 1] * scale;
        StoreTwo<T>(shared.tile, row * kPitch + j * 8 + place.column,
                    pyxla::TimesSigmoid<T>(x, x) * (up[j][2 * i] * scale),
                    pyxla::TimesSigmoid<T>(y, y) * (up[j][2 * i + 1] * scale));
      }
    }
    bar_sync(kTileIsThere, kComputers);
    for (int i = threadIdx.x; i < p.tokens * kColumns; i += kComputers) {
      const int row = i / kColumns, column = i % kColumns * 8, at = tile * GateShape::kRows + column;
      if (at < p.gate_up.columns)
        *reinterpret_cast<uint4*>(static_cast<T*>(p.gated) + int64_t{row} * p.gate_up.columns + at) =
            *reinterpret_cast<const uint4*>(reinterpret_cast<const T*>(shared.tile) + row * kPitch + column);
    }
  });
  if (!has_scales) bar_sync(kScalesAreThere, kWaitForScales);
}

// out = product * scale
template <typename T>
__device__ inline void Project(const DeviceParams& p, const Ring& ring, Shared& shared, uint32_t& stage,
                               uint32_t& turn) {
  constexpr int kColumns = QkvShape::kRows / 8;
  const Place place;
  const int row = place.own_row;
  bool has_scales = false;
  Multiply<T, QkvShape>(p.qkv, ring, stage, [&](int tile, const float (&c)[kColumns][4], auto&) {
    float2 sums[kColumns];
    AddPeers(c, sums, shared, turn);
    if (!has_scales) bar_sync(kScalesAreThere, kWaitForScales);
    has_scales = true;
    const float scale = shared.scale[row];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int column = tile * QkvShape::kRows + j * 8 + place.column;
      const float2 out = Times(sums[j], scale);
      if (row < p.tokens && column < p.qkv.columns)
        StoreTwo<T>(p.out, int64_t{row} * p.qkv.columns + column, out.x, out.y);
    }
  });
}

// out = residual * scale * weight
template <typename T>
__device__ inline void Normalise(const DeviceParams& p, const Shared& shared) {
  const int hidden = p.down.columns;
  bar_sync(kScalesAreThere, kWaitForScales);
  for (int i = (blockIdx.x * kComputers + threadIdx.x) * 2; i < p.tokens * hidden; i += gridDim.x * kComputers * 2) {
    const float2 x = LoadTwo<T>(p.residual, i), weight = LoadTwo<T>(p.input_norm, i % hidden);
    const float scale = shared.scale[i / hidden];
    StoreTwo<T>(p.out, i, x.x * scale * weight.x, x.y * scale * weight.y);
  }
}

// kAsHeads: p.heads counts; there is a qkv_proj then.
template <typename T, bool kAsHeads>
__global__ void __launch_bounds__(kThreads) Kernel(const __grid_constant__ DeviceParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char stages[];
  __shared__ Shared shared;
  const Ring ring{shared_address(stages), shared_address(shared.full), shared_address(shared.empty)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(ring.Full(i), 1);
      mbarrier_init(ring.Empty(i), kComputers / 32);
    }
    mbarrier_init(shared_address(&shared.given), kComputers);
    mbarrier_init(shared_address(&shared.taken), kComputers);
    fence_mbarrier_init();
  }
  cluster_sync();

  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  const auto sync = [&] { grid.sync(); };
  uint32_t stage = 0;
  if (threadIdx.x < kComputers) {
    uint32_t turn = 0;
    AddToResidual<T>(p, p.o, p.post_attention_norm, ring, shared, stage, turn);
    sync();
    Gate<T>(p, ring, shared, stage);
    sync();
    AddToResidual<T>(p, p.down, p.input_norm, ring, shared, stage, turn);
    if constexpr (kAsHeads) {
      const PairsOfHeads<T> pairs(p, Cursor<QueryShape>(p.qkv).tile);
      sync();
      ProjectHeads<T>(p, ring, shared, stage, turn, pairs);
    } else {
      sync();
      if (p.has_qkv)
        Project<T>(p, ring, shared, stage, turn);
      else
        Normalise<T>(p, shared);
    }
  } else if (threadIdx.x < kComputers + 32) {
    Load<AddShape, false>(p.o, ring, stage, [] {});
    Load<GateShape, true>(p.gate_up, ring, stage, sync);
    Load<AddShape, true>(p.down, ring, stage, sync);
    if constexpr (kAsHeads)
      Load<QueryShape, true>(p.qkv, ring, stage, sync);
    else if (p.has_qkv)
      Load<QkvShape, true>(p.qkv, ring, stage, sync);
    else
      sync();
  } else {
    sync();
    FormScales(p, shared);
    sync();
    sync();
    FormScales(p, shared);
  }
  // Until the other block has read what this one gave it, or will not write here any more.
  cluster_sync();
#endif
}

}  // namespace fused_decoder_layer
