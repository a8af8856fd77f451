// The kernel's tile shapes, its ring of stages in shared memory, and the barriers of a CTA. kernel.cuh draws them.
#pragma once

#include <cuda.h>

#include "fused_decoder_layer/fused_decoder_layer.h"
#include "pyxla/device/ptx/cluster.cuh"
#include "pyxla/device/ptx/mbarrier.cuh"
#include "pyxla/device/ptx/memory.cuh"
#include "pyxla/device/ptx/tma.cuh"
#include "pyxla/device/ptx/wgmma.cuh"
#include "pyxla/device/swizzle.cuh"
#include "pyxla/device/warp.cuh"

namespace fused_decoder_layer::sm90 {

using namespace pyxla::ptx;
using pyxla::kAllLanes;
using pyxla::kWarpgroupSize;
using pyxla::kWarpSize;

constexpr int kConsumerThreads = kWarpgroupSize, kNormWarps = 3;
constexpr int kThreads = kConsumerThreads + kWarpSize + kNormWarps * kWarpSize;
constexpr int kNormScaleThreads = kConsumerThreads + kNormWarps * kWarpSize;
enum NamedBarrier { kNormScalesReady = 1, kGatedTileReady };

constexpr int kBlockM = kMaxTokens;
constexpr int kBlockK = 64;                     // 128 bytes, the width of the swizzle
constexpr int kABytes = kBlockM * kBlockK * 2;  // of one block of k, at most
constexpr int kStages = 5, kStageBytes = 40 * 1024;
constexpr int kSharedBytes = kStages * kStageBytes;

// Rows of each half of a head in a tile of kRotary.
constexpr int kRotaryRows = 16;

// A tile is out [kBlockM, kBlockN] = a [kBlockM, k] * b [kBlockN, k]^T.
//   kGated:  two of them, of the gate's rows of b and of up's.
//   kSplitK: the two CTAs of a cluster compute a tile, half of k each.
//   kRotary: the rows of b are of several heads: of each, kRotaryRows of its first half and the kRotaryRows of its
//   second
//            half that they are rotated with.
template <int kBlockN_, bool kGated_, bool kSplitK_, bool kRotary_ = false>
struct TileShape {
  static constexpr int kBlockN = kBlockN_;
  static constexpr bool kGated = kGated_, kSplitK = kSplitK_, kRotary = kRotary_;
  static constexpr int kHeads = kRotary ? kBlockN / (2 * kRotaryRows) : 1, kHalves = kGated || kRotary ? 2 : 1;
  static constexpr int kHalfRows = kRotary ? kRotaryRows : kBlockN;
  static constexpr int kCtas = kSplitK ? 2 : 1;  // of a tile
  static constexpr int kBBytes = kBlockN * kBlockK * 2;
  static constexpr int kBlockBytes = kABytes + (kGated ? 2 : 1) * kBBytes;
  static constexpr int kBlocksPerStage = kStageBytes / kBlockBytes >= 2 ? 2 : 1;
  static_assert(kBlocksPerStage * kBlockBytes <= kStageBytes);
  static_assert(kGranule % (kCtas * kBlocksPerStage * kBlockK) == 0, "no part of k is left over");
};

using ResidualShape = TileShape<64, false, true>;
using GatedShape = TileShape<112, true, false>;
using QkvShape = TileShape<96, false, true>;
using RotaryShape = TileShape<96, false, true, true>;

// Rows of A that are copied to shared memory: a row for each token, up to a multiple of 8, after which the swizzle
// repeats. The product's other rows come from what the stage held before; nothing reads them.
__host__ __device__ constexpr int RowsOfA(int tokens) { return (tokens + 7) / 8 * 8; }

// out [tokens, n] = a [tokens, k] * b [n, k]^T
struct Gemm {
  CUtensorMap a;           // (k in a block, rows, blocks of k)
  CUtensorMap b;           // (k in a block, rows, halves, heads, blocks of k)
  int tiles, k_blocks, n;  // tiles of n
  int tiles_per_head;      // of a tile's heads, if it is of kRotary
};

struct KernelParams {
  Gemm o, gate_up, down, qkv;
  void *residual, *scaled, *gated, *out;  // T; scaled [tokens, hidden] = r * a norm's weight, gated [tokens, inner]
  const void *post_attention_norm, *input_norm;
  float* square_sums;  // [tokens, tiles of hidden]: sums of r^2
  int tokens;
  float eps;
  bool has_qkv;  // else out is the norm
  RotaryAndCacheParams rotary;
};

struct SharedStorage {
  uint64_t full[kStages], empty[kStages], peer_full, peer_empty;
  float norm_scale[kBlockM];
  // The peer's part of a tile, in the order of wgmma's registers; of a gated tile, the tile.
  alignas(16) char tile[kBlockM * (GatedShape::kBlockN + 8) * 2];
};
static_assert(sizeof(SharedStorage::tile) >= QkvShape::kBlockN / 16 * kConsumerThreads * sizeof(float4), "half a tile");
static_assert(sizeof(SharedStorage::tile) >= ResidualShape::kBlockN / 16 * kConsumerThreads * sizeof(float4),
              "half a tile");

// The ring of stages, as addresses in shared memory. The producer and the consumers each count the stages that they
// have used, `i`, through all GEMMs. A stage is one or two blocks of A, then as many of B.
struct Pipeline {
  uint32_t stages, full, empty;
  uint32_t a_bytes;  // of one block of A
  __device__ uint32_t Stage(uint32_t i) const { return stages + i % kStages * kStageBytes; }
  __device__ uint32_t Full(uint32_t i) const { return full + i % kStages * 8; }
  __device__ uint32_t Empty(uint32_t i) const { return empty + i % kStages * 8; }
  __device__ static uint32_t Phase(uint32_t i) { return i / kStages & 1; }
};

// A CTA's tiles of a GEMM, and the stages of each, in order.
template <typename Shape>
struct TileScheduler {
  int tile, stride, first, stages, i = 0;
  __device__ explicit TileScheduler(const Gemm& gemm) {
    tile = blockIdx.x / Shape::kCtas;
    stride = gridDim.x / Shape::kCtas;
    stages = gemm.k_blocks / Shape::kCtas / Shape::kBlocksPerStage;
    first = blockIdx.x % Shape::kCtas * stages;
  }
  __device__ bool HasTile(const Gemm& gemm) const { return tile < gemm.tiles; }
  __device__ void Advance() {
    if (++i == stages) i = 0, tile += stride;
  }
  // The first block of k of the stage.
  __device__ int KBlock() const { return (first + i) * Shape::kBlocksPerStage; }
};

}  // namespace fused_decoder_layer::sm90
