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
// Of the loading warpgroup: a warp chooses tiles and loads their queries, a warp loads keys and values, two clean
// values.
constexpr int kCleaners = kWarpgroup - 2 * kWarpSize;

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
//
// Why nobody waits for ever, and for nothing that is over: all warps go through the same tiles in the order chosen, up
// to the mark behind the last one, and through the same tiles of keys of each, at least one, which they find by the
// same arithmetic. So the sides of a ring count the same uses, and `empty` keeps them less than a round apart, which a
// parity can tell. And what a use waits for is the work of others on that use or earlier ones, never on a later one:
// - a tile is chosen once the one before it is being loaded, and told once all have taken the last one in its stage;
// - its query is loaded once the one before in that stage was multiplied with all its keys;
// - keys and values are loaded in the order in which they are multiplied, once those before in that stage were;
// - values that need it are cleaned once they are there, and multiplied once they are clean.
struct Shared {
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
  uint64_t values_clean[kStages];  // values that not all rows see can be multiplied by zero
  uint64_t query_full[kStages], query_empty[kStages], work_full[kStages], work_empty[kStages];
  uint64_t loads_begun;  // those of the tile told last
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

// The warp that chooses tiles and loads their queries. It is about a tile ahead of the others, and no further: tiles
// that a block has chosen no other one can take.
template <typename T, int kHeadDim>
__device__ inline void Choose(const Params& p, const Plan& plan, Shared& shared, uint32_t queries, int count) {
  using S = Shape<kHeadDim>;
  constexpr int kChunks = kHeadDim / kChunk;
  Ring<> work_ring;
  Ring<1> begun_ring;
  Ring<S::kQueryStages> query_ring;
  const int lane = threadIdx.x % kWarpSize;
  const unsigned kv_heads = plan.kv_heads, total = count * kv_heads;
  for (unsigned index = blockIdx.x;;) {
    // Tiles at the end of a sequence see the most keys and come first.
    Work work = {};
    work.is_last = index >= total;
    if (!work.is_last) {
      work.tile = shared.tiles.Find(p, plan, count - 1 - static_cast<int>(index / kv_heads));
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

    // A lane finds one row in 32, and tells the others.
    Wait(At(shared.query_empty, query_ring), query_ring.Parity() ^ 1);
    const Matrix<kHeadDim> query{queries + query_ring.Stage() * S::kQueryBytes};
    for (int first = 0; first < kRows; first += kWarpSize) {
      const int64_t row_index = FindRow(plan, work.tile, work.kv_head, first + lane).index;
      const auto mine = reinterpret_cast<uint64_t>(static_cast<const T*>(p.query) + row_index * kHeadDim);
#pragma unroll 4
      for (int i = 0; i < kChunks; ++i) {
        const int row = (i * kWarpSize + lane) / kChunks, chunk = (i * kWarpSize + lane) % kChunks;
        const auto* from = reinterpret_cast<const T*>(__shfl_sync(kAllLanes, mine, row)) + chunk * kChunk;
        CopyOrZero(query.At(first + row, chunk), from, true);
      }
    }
    CommitCopies();
    Wait(SharedAddress(&shared.loads_begun), begun_ring.Parity());
    ++begun_ring.count;
    const unsigned taken = lane == 0 ? atomicAdd(static_cast<unsigned*>(p.workspace), 1) : 0;
    WaitForCopies<0>();
    FenceForAsync();
    Arrive(At(shared.query_full, query_ring));
    ++query_ring.count;
    index = gridDim.x + __shfl_sync(kAllLanes, taken, 0);
  }
}

// The warp that loads keys and values, in the order in which they are needed.
template <typename T, int kHeadDim>
__device__ inline void Load(const Params& p, const CUtensorMap& map, Shared& shared, uint32_t keys, uint32_t values,
                            int piece_keys) {
  using S = Shape<kHeadDim>;
  Ring<> key_ring, value_ring, work_ring;
  const int value_row = static_cast<int>(p.blocks * p.block_size / 8);
  for (;;) {
    const Work work = TakeWork(shared, work_ring);
    const Tile& tile = work.tile;
    if (work.is_last) return;
    if (threadIdx.x % kWarpSize == 0) Arrive(SharedAddress(&shared.loads_begun));

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
  }
}

// The warps that see to values that not all rows of the tile see: zero times NaN were NaN.
template <typename T, int kHeadDim>
__device__ inline void Clean(const Params& p, Shared& shared, uint32_t values) {
  using S = Shape<kHeadDim>;
  constexpr int kChunks = kHeadDim / kChunk;
  const int thread = threadIdx.x - (kThreads - kCleaners);
  Ring<> work_ring, value_ring;
  for (;;) {
    const Work work = TakeWork(shared, work_ring);
    const Tile& tile = work.tile;
    if (work.is_last) return;

    const int first = tile.key_begin / S::kKeys, last = (tile.key_end - 1) / S::kKeys;
    for (int t = last; t >= first; --t, ++value_ring.count) {
      Wait(At(shared.values_full, value_ring), value_ring.Parity());
      if (!IsFull<S::kKeys>(p, tile, t)) {
        const Matrix<kHeadDim> stage{values + value_ring.Stage() * S::kTileBytes};
        for (int row = thread; row < S::kKeys; row += kCleaners) {
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
