// What becomes of a GEMM's tiles: the sum over a cluster's two CTAs, then the residual and its squares, the gate, or
// the qkv projection.
#pragma once

#include <type_traits>

#include "_gated/gated.cuh"
#include "fused_decoder_layer/sm90/mainloop_mma.cuh"

namespace fused_decoder_layer::sm90 {

// Two neighbours in a row, from L2: another CTA may have written them.
template <typename T>
__device__ inline unsigned LoadPairBits(const void* base, int64_t at) {
  return __ldcg(reinterpret_cast<const unsigned*>(static_cast<const T*>(base) + at));
}

template <typename T>
__device__ inline float2 UnpackPair(unsigned bits) {
  if constexpr (std::is_same_v<T, __half>)
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  else
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&bits));
}

template <typename T>
__device__ inline float2 LoadPair(const void* base, int64_t at) {
  return UnpackPair<T>(LoadPairBits<T>(base, at));
}

// Rounds and stores; returns the rounded.
template <typename T>
__device__ inline float2 StorePair(void* base, int64_t at, float x, float y) {
  T* to = static_cast<T*>(base) + at;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(x, y);
    *reinterpret_cast<__half2*>(to) = pair;
    return __half22float2(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    *reinterpret_cast<__nv_bfloat162*>(to) = pair;
    return __bfloat1622float2(pair);
  }
}

__device__ inline float2 Scale(float2 x, float y) { return {x.x * y, x.y * y}; }

// Where a consumer thread's elements of a tile are: rows row and row + 8, two columns of each eight. Of a split tile
// the even CTA completes the first of these rows, the odd one the second.
struct ThreadPlace {
  int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  int row = warp * 16 + lane / 4, column = lane % 4 * 2;
  int own_row = row + blockIdx.x % 2 * 8;
};

// Of a thread's two rows the first or the second.
__device__ inline float2 RowOf(const float (&c)[4], bool is_first) {
  return is_first ? float2{c[0], c[1]} : float2{c[2], c[3]};
}

__device__ inline void ArriveAtPeer(const uint64_t* barrier) {
  mbarrier_arrive_cluster(mapa_peer(shared_address(barrier)));
}

__device__ inline void WaitForPeer(const uint64_t* barrier, uint32_t phase) {
  mbarrier_wait_cluster(shared_address(barrier), phase);
}

// sums = this CTA's row of a tile, the sum over both CTAs: each writes the other one's row to its shared memory.
template <int kColumns>
__device__ inline void ReduceSplitK(const Accumulator<kColumns>& c, float2 (&sums)[kColumns], SharedStorage& shared,
                                    uint32_t& exchange) {
  const bool is_first = blockIdx.x % 2 == 0;
  float4* here = reinterpret_cast<float4*>(shared.tile) + threadIdx.x;
  const uint32_t there = mapa_peer(shared_address(here));
  WaitForPeer(&shared.peer_empty, (exchange & 1) ^ 1);
#pragma unroll
  for (int j = 0; j < kColumns; j += 2) {
    const float2 x = RowOf(c[j], !is_first), y = RowOf(c[j + 1], !is_first);
    st_shared_cluster_v4(there + j / 2 * kConsumerThreads * 16, x, y);
  }
  ArriveAtPeer(&shared.peer_full);
  WaitForPeer(&shared.peer_full, exchange & 1);
#pragma unroll
  for (int j = 0; j < kColumns; j += 2) {
    const float4 other = here[j / 2 * kConsumerThreads];
    const float2 x = RowOf(c[j], is_first), y = RowOf(c[j + 1], is_first);
    sums[j] = {x.x + other.x, x.y + other.y};
    sums[j + 1] = {y.x + other.z, y.y + other.w};
  }
  ArriveAtPeer(&shared.peer_empty);
  ++exchange;
}

// residual += a * b^T; scaled = residual * weight; and the sums of squares.
template <typename T>
__device__ inline void GemmAddResidual(const KernelParams& p, const Gemm& gemm, const void* weight,
                                       const Pipeline& pipeline, SharedStorage& shared, uint32_t& stage,
                                       uint32_t& exchange) {
  constexpr int kColumns = ResidualShape::kBlockN / 8;
  const ThreadPlace place;
  const int row = place.own_row;
  unsigned old[kColumns], norm[kColumns];
  const auto load = [&](int tile) {
    const int first = tile * ResidualShape::kBlockN + place.column;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      norm[j] = LoadPairBits<T>(weight, first + j * 8);
      old[j] = row < p.tokens ? LoadPairBits<T>(p.residual, int64_t{row} * gemm.n + first + j * 8) : 0;
    }
  };
  // The first tile's, long before they are added.
  const TileScheduler<ResidualShape> scheduler(gemm);
  bool is_first = true;
  if (scheduler.HasTile(gemm)) load(scheduler.tile);
  RunGemm<T, ResidualShape>(gemm, pipeline, stage, [&](int tile, const Accumulator<kColumns>& c, auto&) {
    if (!is_first) load(tile);
    is_first = false;
    float2 sums[kColumns];
    ReduceSplitK(c, sums, shared, exchange);
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (row >= p.tokens) continue;
      const int64_t at = int64_t{row} * gemm.n + tile * ResidualShape::kBlockN + j * 8 + place.column;
      const float2 was = UnpackPair<T>(old[j]), times = UnpackPair<T>(norm[j]);
      const float2 sum = StorePair<T>(p.residual, at, was.x + sums[j].x, was.y + sums[j].y);
      StorePair<T>(p.scaled, at, sum.x * times.x, sum.y * times.y);
      squares += sum.x * sum.x + sum.y * sum.y;
    }
    squares += __shfl_xor_sync(kAllLanes, squares, 1);
    squares += __shfl_xor_sync(kAllLanes, squares, 2);
    if (place.lane % 4 == 0 && row < p.tokens) p.square_sums[row * gemm.tiles + tile] = squares;
  });
}

// gated = silu(gate * scale) * (up * scale), stored through shared memory in vectors of 16 bytes.
template <typename T>
__device__ inline void GemmSiluAndMul(const KernelParams& p, const Pipeline& pipeline, SharedStorage& shared,
                                      uint32_t& stage) {
  constexpr int kColumns = GatedShape::kBlockN / 8, kPitch = GatedShape::kBlockN + 8;
  const ThreadPlace place;
  bool has_scales = false;
  RunGemm<T, GatedShape>(p.gate_up, pipeline, stage, [&](int tile, auto& gate, auto& up) {
    // Either barrier also says that the tile before has left shared memory.
    if (has_scales)
      bar_sync(kGatedTileReady, kConsumerThreads);
    else
      bar_sync(kNormScalesReady, kNormScaleThreads);
    has_scales = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = place.row + 8 * i;
      const float scale = shared.norm_scale[row];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float x = gate[j][2 * i] * scale, y = gate[j][2 * i + 1] * scale;
        StorePair<T>(shared.tile, row * kPitch + j * 8 + place.column,
                     pyxla::TimesSigmoid<T>(x, x) * (up[j][2 * i] * scale),
                     pyxla::TimesSigmoid<T>(y, y) * (up[j][2 * i + 1] * scale));
      }
    }
    bar_sync(kGatedTileReady, kConsumerThreads);
    for (int i = threadIdx.x; i < p.tokens * kColumns; i += kConsumerThreads) {
      const int row = i / kColumns, column = i % kColumns * 8, at = tile * GatedShape::kBlockN + column;
      if (at < p.gate_up.n)
        *reinterpret_cast<uint4*>(static_cast<T*>(p.gated) + int64_t{row} * p.gate_up.n + at) =
            *reinterpret_cast<const uint4*>(reinterpret_cast<const T*>(shared.tile) + row * kPitch + column);
    }
  });
  if (!has_scales) bar_sync(kNormScalesReady, kNormScaleThreads);
}

// out = a * b^T * scale
template <typename T>
__device__ inline void GemmQkv(const KernelParams& p, const Pipeline& pipeline, SharedStorage& shared, uint32_t& stage,
                               uint32_t& exchange) {
  constexpr int kColumns = QkvShape::kBlockN / 8;
  const ThreadPlace place;
  const int row = place.own_row;
  bool has_scales = false;
  RunGemm<T, QkvShape>(p.qkv, pipeline, stage, [&](int tile, const Accumulator<kColumns>& c, auto&) {
    float2 sums[kColumns];
    ReduceSplitK(c, sums, shared, exchange);
    if (!has_scales) bar_sync(kNormScalesReady, kNormScaleThreads);
    has_scales = true;
    const float scale = shared.norm_scale[row];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int column = tile * QkvShape::kBlockN + j * 8 + place.column;
      const float2 out = Scale(sums[j], scale);
      if (row < p.tokens && column < p.qkv.n) StorePair<T>(p.out, int64_t{row} * p.qkv.n + column, out.x, out.y);
    }
  });
}

// out = residual * scale * weight
template <typename T>
__device__ inline void StoreNorm(const KernelParams& p, const SharedStorage& shared) {
  const int hidden = p.down.n;
  bar_sync(kNormScalesReady, kNormScaleThreads);
  for (int i = (blockIdx.x * kConsumerThreads + threadIdx.x) * 2; i < p.tokens * hidden;
       i += gridDim.x * kConsumerThreads * 2) {
    const float2 x = LoadPair<T>(p.residual, i), weight = LoadPair<T>(p.input_norm, i % hidden);
    const float scale = shared.norm_scale[i / hidden];
    StorePair<T>(p.out, i, x.x * scale * weight.x, x.y * scale * weight.y);
  }
}

}  // namespace fused_decoder_layer::sm90
