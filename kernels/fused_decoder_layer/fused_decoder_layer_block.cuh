// What a block has: its warps, its parameters and its shared memory, pairs of elements of T, and the exchange with the
// other block of its pair, half the rows of a tile each way.
#pragma once

#include <type_traits>

#include "fused_decoder_layer/fused_decoder_layer_products.cuh"
#include "common/device/ptx/cluster.cuh"

namespace fused_decoder_layer {

// Warps: a warpgroup multiplies, one warp loads, three form the norms' scales.
constexpr int kComputers = kWarpgroupSize, kScaleWarps = 3, kThreads = kComputers + 32 + kScaleWarps * 32;
constexpr int kWaitForScales = kComputers + kScaleWarps * 32;
enum NamedBarrier { kScalesAreThere = 1, kTileIsThere };

using AddShape = Shape<64, false, true>;
using GateShape = Shape<112, true, false>;
using QkvShape = Shape<96, false, true>;
using QueryShape = Shape<96, false, true, true>;

struct DeviceParams {
  Product o, gate_up, down, qkv;
  void *residual, *scaled, *gated, *out;  // T; scaled [tokens, hidden] = r * a norm's weight, gated [tokens, inner]
  const void *post_attention_norm, *input_norm;
  float* squares;  // [tokens, tiles of hidden]: sums of each
  int tokens;
  float eps;
  bool has_qkv;  // else out is the norm itself
  HeadsParams heads;
};

struct Shared {
  uint64_t full[kStages], empty[kStages], given, taken;
  float scale[kMaxTokens];
  // What the pair's other block gives of a tile, in the order of wgmma's registers; of a gated tile, the tile.
  alignas(16) char tile[kMaxTokens * (GateShape::kRows + 8) * 2];
};
static_assert(sizeof(Shared::tile) >= QkvShape::kRows / 16 * kComputers * sizeof(float4), "half a tile of floats");
static_assert(sizeof(Shared::tile) >= AddShape::kRows / 16 * kComputers * sizeof(float4), "half a tile of floats");

__device__ inline void ArriveAtPeer(const uint64_t* barrier) {
  mbarrier_arrive_cluster(mapa_peer(shared_address(barrier)));
}

__device__ inline void WaitForPeer(const uint64_t* barrier, uint32_t parity) {
  mbarrier_wait_cluster(shared_address(barrier), parity);
}

// Two neighbours in a row, from L2: another block may have written them.
template <typename T>
__device__ inline unsigned LoadBits(const void* base, int64_t at) {
  return __ldcg(reinterpret_cast<const unsigned*>(static_cast<const T*>(base) + at));
}

template <typename T>
__device__ inline float2 AsTwo(unsigned bits) {
  if constexpr (std::is_same_v<T, __half>)
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  else
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&bits));
}

template <typename T>
__device__ inline float2 LoadTwo(const void* base, int64_t at) {
  return AsTwo<T>(LoadBits<T>(base, at));
}

// Rounds and stores; returns the rounded.
template <typename T>
__device__ inline float2 StoreTwo(void* base, int64_t at, float x, float y) {
  T* to = static_cast<T*>(base) + at;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 two = __floats2half2_rn(x, y);
    *reinterpret_cast<__half2*>(to) = two;
    return __half22float2(two);
  } else {
    const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    *reinterpret_cast<__nv_bfloat162*>(to) = two;
    return __bfloat1622float2(two);
  }
}

// Where a thread's elements of a tile are: rows row and row + 8, two columns of each eight. Of a tile of pairs the even
// block completes the first of these rows, the odd one the second.
struct Place {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int row = warp * 16 + lane / 4, column = lane % 4 * 2;
  int own_row = row + blockIdx.x % 2 * 8;
};

__device__ inline float2 Times(float2 x, float y) { return {x.x * y, x.y * y}; }

// Of a thread's two rows the first or the second.
__device__ inline float2 RowOf(const float (&c)[4], bool is_first) {
  return is_first ? float2{c[0], c[1]} : float2{c[2], c[3]};
}

// sums = this block's row of a tile, both blocks' parts of it.
template <int kColumns>
__device__ inline void AddPeers(const float (&c)[kColumns][4], float2 (&sums)[kColumns], Shared& shared,
                                uint32_t& turn) {
  const bool is_first = blockIdx.x % 2 == 0;
  float4* here = reinterpret_cast<float4*>(shared.tile) + threadIdx.x;
  const uint32_t there = mapa_peer(shared_address(here));
  WaitForPeer(&shared.taken, (turn & 1) ^ 1);
#pragma unroll
  for (int j = 0; j < kColumns; j += 2) {
    const float2 a = RowOf(c[j], !is_first), b = RowOf(c[j + 1], !is_first);
    st_shared_cluster_v4(there + j / 2 * kComputers * 16, a, b);
  }
  ArriveAtPeer(&shared.given);
  WaitForPeer(&shared.given, turn & 1);
#pragma unroll
  for (int j = 0; j < kColumns; j += 2) {
    const float4 other = here[j / 2 * kComputers];
    const float2 a = RowOf(c[j], is_first), b = RowOf(c[j + 1], is_first);
    sums[j] = {a.x + other.x, a.y + other.y};
    sums[j + 1] = {b.x + other.z, b.y + other.w};
  }
  ArriveAtPeer(&shared.taken);
  ++turn;
}

}  // namespace fused_decoder_layer
