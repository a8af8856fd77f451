// The prefill kernel for sm_90a: who shares what, and which barriers say so. One CTA per SM, persistent, three
// warpgroups (four for head_dim 64), two stages of each buffer (one of Q for head_dim 256, or 128 and a float8 cache):
//
//   warpgroup 0, 1  consumers    64 rows each: S = Q K^T (wgmma_ss), softmax, O += P V (wgmma_rs), store O, or merge
//                                the splits of a tile: sm90_splits.cuh
//   warpgroup 2     producer
//     warp 0        scheduler    takes work tiles from a counter in the workspace, passes them on, copies Q (cp.async)
//     warp 1        load         copies K and V pages by TMA
//     warp 2, 3     V fix-up     zeroes what not all rows of the tile may multiply: 0 * NaN is NaN
//
//   Over a float8 cache convert warps take the place of V fix-up: warp 2 and 3 for head_dim 64, else a warpgroup more:
//                   convert      K and V from the copied bytes to T, and V's fix-up
//
//   barrier          completed by                       waited for by
//   work_full        scheduler (1)                      everybody else
//   work_empty       everybody else                     scheduler
//   loads_begun      load (1)                           scheduler, before it takes the tile after the next
//   q_full           scheduler (32)                     consumers
//   q_empty          consumers (256)                    scheduler
//   k_full           load (1), and bytes of TMA         consumers
//   k_empty          consumers (256)                    load
//   v_full           load (1), and bytes of TMA         V fix-up; consumers, where all rows see the whole KV tile
//   v_fixed          V fix-up (64)                      consumers, of the other KV tiles
//   v_empty          consumers and V fix-up (320)       load
//   over a float8 cache, in place of the load's and the fix-up's part:
//   bytes_full       load (1), and bytes of TMA         convert
//   bytes_empty      convert (64 or 128)                load
//   k_full, v_full   convert (64 or 128)                consumers
//   k_empty, v_empty consumers (256)                    convert
//   named 1, 2       the other consumer warpgroup       consumer 0, 1: their turn at the tensor cores
//   named 3          all consumers                      all consumers, around the merge of a tile's splits
#pragma once

#include "paged_attention/prefill/epilogue.cuh"
#include "pyxla/device/ptx/cp_async.cuh"
#include "pyxla/device/ptx/mbarrier.cuh"
#include "pyxla/device/ptx/tma.cuh"
#include "pyxla/device/ptx/wgmma.cuh"
#include "pyxla/device/swizzle.cuh"

namespace paged_attention {
namespace prefill {
namespace sm90 {

constexpr int kStages = 2;
// Splits of a CTA, at most, if the CTAs share the merges.
constexpr int kMostShares = 16;

// Rows of kHeadDim elements of T; keys and values are Kv, T or float8.
template <typename T_, typename Kv_, int kHeadDim_>
struct Shape {
  using T = T_;
  using Kv = Kv_;
  static constexpr bool kIsFloat8 = sizeof(Kv) == 1;
  static constexpr int kHeadDim = kHeadDim_;
  // Head size 64 has half the products and as many exponentials. Three consumers, each of which waits for its own
  // products, hide them for one another; two that overlap them with their own products do not.
  static constexpr bool kOverlaps = kHeadDim != 64;
  static constexpr int kConsumers = kOverlaps ? 2 : 3, kRows = 64 * kConsumers;
  // Two warps of the producer fix V up, or convert a float8 cache. Two consumers leave registers for a warpgroup that
  // converts.
  static constexpr bool kHasConverter = kIsFloat8 && kConsumers == 2;
  static constexpr int kFixupThreads = kHasConverter ? kWarpgroupSize : kWarpgroupSize - 2 * kWarpSize;
  static constexpr int kWarpgroups = kConsumers + 1 + kHasConverter, kThreads = kWarpgroups * kWarpgroupSize;
  static constexpr int kConsumerThreads = kConsumers * kWarpgroupSize;
  // Registers of a thread: the warpgroups share those that the kernel is launched with.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kHasConverter ? 48 : 56;
  static constexpr int kConverterRegisters = kHasConverter ? 64 : 0;
  static constexpr int kConsumerRegisters =
      (kWarpgroups * kLaunchRegisters - kProducerRegisters - kConverterRegisters) / kConsumers / 8 * 8;
  static constexpr int kKeys = kHeadDim <= 128 ? 128 : 64;
  static constexpr int kQueryBytes = kRows * kHeadDim * 2, kTileBytes = kKeys * kHeadDim * 2;
  // A stage of what TMA copies of a float8 cache: keys or values.
  static constexpr int kBytesStage = kIsFloat8 ? kKeys * kHeadDim : 0;
  static constexpr int kQueryStages = kHeadDim <= (kIsFloat8 ? 64 : 192) ? 2 : 1;
  static constexpr int kSharedBytes =
      1024 + kQueryStages * kQueryBytes + 2 * kStages * kTileBytes + kStages * kBytesStage;
  static_assert(kSharedBytes <= 226 * 1024, "fits into the shared memory of sm_90");
};

struct WorkTile {
  Tile tile;
  int kv_head;
  int number;    // of the tile's split among all
  bool is_last;  // no tile, the end of the work
};

// Barriers of each stage: `full` is completed when the stage is loaded, `empty` when all have read it.
//
// There is no deadlock, and no wait for a phase that is long over. All warps go through the same work tiles in the same
// order, up to is_last, and through the same KV tiles of each, at least one, which they find by the same arithmetic. So
// both sides of a ring count the same uses, and `empty` keeps them less than a round apart, which the parity can
// distinguish. A use of a stage waits only for the work of others on that use or on earlier ones:
// - a work tile is taken when the load of the one before has begun, and passed on when its stage has been read;
// - Q is loaded when the last Q of its stage has been multiplied with all its keys;
// - K and V are loaded in the order in which they are multiplied, when the last ones of their stage have been;
// - V that needs it is fixed when it is loaded, and multiplied when it is fixed.
template <typename S>
struct SharedStorage {
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  uint64_t v_fixed[kStages];  // V that not all rows see can be multiplied by P = 0
  uint64_t q_full[kStages], q_empty[kStages], work_full[kStages], work_empty[kStages];
  uint64_t bytes_full[kStages], bytes_empty[kStages];  // over a float8 cache
  uint64_t loads_begun;                                // of the last work tile that was passed on
  WorkTile work[kStages];
  uint8_t has_nonfinite[kStages][128];  // keys whose values were not finite
  TileScheduler<S::kRows, S::kThreads, S::kKeys> tiles;
  int count;           // of all splits of tiles
  int slot_rows;       // of a split's slot in the workspace
  int ring;            // slots of a kv head
  bool is_last_split;  // to be stored of its tile
  int share_count;
  WorkTile shares[kMostShares];
};

// Counts uses of a ring of stages.
template <int kSize = kStages>
struct PipelineState {
  uint32_t count = 0;
  __device__ uint32_t Stage() const { return count % kSize; }
  __device__ uint32_t Phase() const { return count / kSize % 2; }
};

template <int kSize>
__device__ inline uint32_t At(const uint64_t (&barriers)[kStages], const PipelineState<kSize>& ring) {
  return shared_address(&barriers[ring.Stage()]);
}

// Whether each split has a slot of its own: then the CTAs of a tile share its merge.
template <typename S>
__device__ inline bool SharesMerges(const SharedStorage<S>& shared) {
  return shared.count <= shared.ring;
}

// The next work tile, for all warps but the scheduler.
template <typename S>
__device__ inline WorkTile NextWorkTile(const SharedStorage<S>& shared, PipelineState<>& ring) {
  mbarrier_wait(At(shared.work_full, ring), ring.Phase());
  const WorkTile work = shared.work[ring.Stage()];
  mbarrier_arrive(At(shared.work_empty, ring));
  ++ring.count;
  return work;
}

}  // namespace sm90
}  // namespace prefill
}  // namespace paged_attention
