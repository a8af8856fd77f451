// The loading warpgroup of the prefill with wgmma, and what it shares with those that compute: stages in shared memory,
// and barriers that say who may use them.
#pragma once

#include "paged_attention/paged_attention_hopper.cuh"
#include "paged_attention/paged_attention_prefill_softmax.cuh"

namespace paged_attention {
namespace prefill {
namespace wgmma {

using namespace hopper;

constexpr int kRows = 128, kComputers = 2 * kWarpgroup, kThreads = kComputers + kWarpgroup;
constexpr int kStages = 2;
// Of the loading warpgroup: one warp chooses tiles and loads keys and values, the others load the query and clear
// values.
constexpr int kHelpers = kWarpgroup - kWarpSize;

template <int kHeadDim>
struct Shape {
  static constexpr int kKeys = kHeadDim <= 128 ? 128 : 64;
  static constexpr int kQueryBytes = kRows * kHeadDim * 2, kTileBytes = kKeys * kHeadDim * 2;
  static constexpr int kQueryStages = kHeadDim <= 192 ? 2 : 1;
  static constexpr int kSharedBytes = 1024 + kQueryStages * kQueryBytes + 2 * kStages * kTileBytes;
  static_assert(kSharedBytes <= 226 * 1024, "fits into the shared memory of sm_90");
};

struct Work {
  Tile tile;
  int kv_head;
  bool is_last;  // no tile: all are done
};

// Barriers: `full` counts what is loaded, `empty` who is done with it; of each stage.
struct Shared {
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
  uint64_t values_clean[kStages];  // values that not all rows see can be multiplied by zero
  uint64_t query_full[kStages], query_empty[kStages], work_full[kStages], work_empty[kStages];
  Work work[kStages];
  uint8_t is_spoiled[kStages][128];  // keys whose values were not finite
  TileList<kRows, kThreads> tiles;
};

// Counts uses of a ring of stages.
template <int kSize = kStages>
struct Ring {
  uint32_t count = 0;
  __device__ uint32_t Stage() const { return count % kSize; }
  __device__ uint32_t Parity() const { return count / kSize % 2; }
};

template <int kSize>
__device__ inline uint32_t At(const uint64_t (&barriers)[kStages], const Ring<kSize>& ring) {
  return SharedAddress(&barriers[ring.Stage()]);
}

// The next tile, for everybody but the warp that chooses it.
__device__ inline Work TakeWork(const Shared& shared, Ring<>& ring) {
  Wait(At(shared.work_full, ring), ring.Parity());
  const Work work = shared.work[ring.Stage()];
  Arrive(At(shared.work_empty, ring));
  ++ring.count;
  return work;
}

// Keys and values come in pieces of as many as lie together in both a block and a tile. A lane has one piece of the
// tile: its place in the cache, in units of 8 rows of keys; or why it is not read.
constexpr int kUnseen = -1, kWrongBlock = -2;

template <int kKeys>
__device__ inline int FindPiece(const Params& p, const Tile& tile, int t, int piece_keys) {
  const int piece = static_cast<int>(threadIdx.x % kWarpSize) * piece_keys, key = t * kKeys + piece;
  if (piece >= kKeys || key + piece_keys <= tile.key_begin || key >= tile.key_end) return kUnseen;
  const int block_size = static_cast<int>(p.block_size),
            block = p.block_tables[tile.seq * p.max_blocks + key / block_size];
  if (block < 0 || block >= p.blocks) return kWrongBlock;
  return static_cast<int>((static_cast<int64_t>(block) * block_size + key % block_size) / 8);
}

// One warp. Keys of a wrong block become NaN, they reach the rows that see them and no other; its values zero.
template <typename T, int kHeadDim>
__device__ inline void LoadPieces(const CUtensorMap& map, uint32_t full, uint32_t to, int piece, int piece_keys,
                                  int first_row, int kv_head, T wrong) {
  const int bytes = piece_keys * kHeadDim * 2, lane = threadIdx.x % kWarpSize;
  const uint32_t mine = to + lane * bytes;
  if (__any_sync(kAllLanes, piece == kWrongBlock)) {
    const uint32_t fill = Pack<T>(static_cast<float>(wrong), static_cast<float>(wrong));
    for (int i = 0; i < bytes && piece == kWrongBlock; i += 16) SetSixteenBytes(mine + i, fill);
    FenceForAsync();
  }
  const int pieces = __popc(__ballot_sync(kAllLanes, piece >= 0));
  if (lane == 0) ArriveAndExpect(full, pieces * bytes);
  __syncwarp();
  if (piece >= 0) CopyBox(map, mine, full, first_row + piece, kv_head);
}

// The warp that chooses tiles and loads keys and values, in the order in which they are needed.
template <typename T, int kHeadDim>
__device__ inline void Load(const Params& p, const CUtensorMap& map, Shared& shared, uint32_t keys, uint32_t values,
                            int piece_keys, int count) {
  using S = Shape<kHeadDim>;
  Ring<> key_ring, value_ring, work_ring;
  const int lane = threadIdx.x % kWarpSize, value_row = static_cast<int>(p.blocks * p.block_size / 8);
  const int kv_heads = static_cast<int>(p.kv_heads);
  const int64_t total = static_cast<int64_t>(count) * kv_heads;
  for (int64_t index = blockIdx.x;;) {
    // Tiles at the end of a sequence see the most keys and come first.
    Work work = {};
    work.is_last = index >= total;
    if (!work.is_last) {
      work.tile = shared.tiles.Find(p, count - 1 - static_cast<int>(index / kv_heads));
      work.kv_head = static_cast<int>(index % kv_heads);
    }
    Wait(At(shared.work_empty, work_ring), work_ring.Parity() ^ 1);
    if (lane == 0) {
      shared.work[work_ring.Stage()] = work;
      Arrive(At(shared.work_full, work_ring));
    }
    __syncwarp();
    ++work_ring.count;
    if (work.is_last) return;
    unsigned taken = lane == 0 ? atomicAdd(static_cast<unsigned*>(p.workspace), 1) : 0;

    const Tile& tile = work.tile;
    const int first = tile.key_begin / S::kKeys, last = (tile.key_end - 1) / S::kKeys;
    int piece = FindPiece<S::kKeys>(p, tile, last, piece_keys), previous = kUnseen;
    for (int t = last; t >= first - 1; --t) {
      const int next = t > first ? FindPiece<S::kKeys>(p, tile, t - 1, piece_keys) : kUnseen;
      if (t >= first) {
        Wait(At(shared.keys_empty, key_ring), key_ring.Parity() ^ 1);
        LoadPieces<T, kHeadDim>(map, At(shared.keys_full, key_ring), keys + key_ring.Stage() * S::kTileBytes, piece,
                                piece_keys, 0, work.kv_head, static_cast<T>(NAN));
        ++key_ring.count;
      }
      if (t < last) {
        Wait(At(shared.values_empty, value_ring), value_ring.Parity() ^ 1);
        LoadPieces<T, kHeadDim>(map, At(shared.values_full, value_ring), values + value_ring.Stage() * S::kTileBytes,
                                previous, piece_keys, value_row, work.kv_head, static_cast<T>(0.0f));
        ++value_ring.count;
      }
      previous = piece;
      piece = next;
    }
    index = gridDim.x + static_cast<int64_t>(__shfl_sync(kAllLanes, taken, 0));
  }
}

// The warps that load the query, and see to values that not all rows of the tile see: zero times NaN were NaN.
template <typename T, int kHeadDim>
__device__ inline void Help(const Params& p, Shared& shared, uint32_t queries, uint32_t values) {
  using S = Shape<kHeadDim>;
  constexpr int kChunks = kHeadDim / kChunk;
  const int thread = threadIdx.x - kComputers - kWarpSize;
  Ring<> work_ring, value_ring;
  Ring<S::kQueryStages> query_ring;
  for (;;) {
    const Work work = TakeWork(shared, work_ring);
    const Tile& tile = work.tile;
    if (work.is_last) return;

    Wait(At(shared.query_empty, query_ring), query_ring.Parity() ^ 1);
    const Matrix<kHeadDim> query{queries + query_ring.Stage() * S::kQueryBytes};
    for (int i = thread; i < kRows * kChunks; i += kHelpers) {
      const int row = i / kChunks, chunk = i % kChunks;
      const T* from = static_cast<const T*>(p.query) + FindRow(p, tile, work.kv_head, row).head * p.head_dim;
      CopyOrZero(query.At(row, chunk), from + chunk * kChunk, true);
    }
    CommitCopies();
    WaitForCopies<0>();
    FenceForAsync();
    Arrive(At(shared.query_full, query_ring));
    ++query_ring.count;

    const int first = tile.key_begin / S::kKeys, last = (tile.key_end - 1) / S::kKeys;
    for (int t = last; t >= first; --t, ++value_ring.count) {
      Wait(At(shared.values_full, value_ring), value_ring.Parity());
      if (!IsFull<S::kKeys>(p, tile, t)) {
        const Matrix<kHeadDim> stage{values + value_ring.Stage() * S::kTileBytes};
        for (int row = thread; row < S::kKeys; row += kHelpers) {
          const int key = t * S::kKeys + row;
          const auto at = [&](int chunk) { return stage.At(row, chunk); };
          const bool is_seen = key >= tile.key_begin && key < tile.key_end;
          for (int chunk = 0; chunk < kChunks && !is_seen; ++chunk) SetSixteenBytes(at(chunk), 0);
          shared.is_spoiled[value_ring.Stage()][row] = is_seen && MakeFinite<T, kChunks>(at);
        }
        FenceForAsync();
        Arrive(At(shared.values_clean, value_ring));
      }
      Arrive(At(shared.values_empty, value_ring));
    }
  }
}

}  // namespace wgmma
}  // namespace prefill
}  // namespace paged_attention
