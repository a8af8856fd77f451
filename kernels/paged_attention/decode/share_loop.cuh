// One warp's KV tiles of a work tile, computed by a whole CTA: see few_tiles.cuh.
//
// Only what has an order stays in order, so that all bits are those of a warp in kernel.cuh, which takes 0.7 us for
// each KV tile, one after the other:
//
//   S = K Q^T              a block's KV tiles, each by the next warp; S goes to shared memory
//   P, m, l; O += V^T P    the KV tiles in order; each of some warps has a slice of the head dimension, the others
//                          copy values, in a ring of three stages for all
#pragma once

#include "paged_attention/decode/epilogue.cuh"

namespace paged_attention::decode {

// A part of the head dimension that one warp adds: kVectors of each key's values, densely in shared memory.
template <typename Whole>
struct Slice : Whole {
  static constexpr int kSlices = Whole::kVectors / 2 < 4 || Whole::kWarps < 4 ? 2 : 4;
  static constexpr int kDim = Whole::kDim / kSlices, kRowBytes = Whole::kRowBytes / kSlices;
  static constexpr int kVectors = Whole::kVectors / kSlices;
  static_assert(kVectors % 2 == 0 && kSlices <= Whole::kWarps);

  __device__ static int Offset(int row, int vector) {
    const int swizzle = kVectors >= 8 ? row & 7 : kVectors == 4 ? row / 2 & 3 : row / 4 & 1;
    return row * kRowBytes + (vector ^ swizzle) * 16;
  }
};

// The values of several KV tiles, as those of one.
template <typename Whole>
struct WideSlice : Slice<Whole> {
  static constexpr int kCount = Whole::kKeys < 64 ? 64 / Whole::kKeys : 1, kKeys = kCount * Whole::kKeys;
};

// Shared memory of a CTA: two stages of keys for each warp, later two stages of values; a stage of values that is
// copied meanwhile; S of a block of KV tiles; the rows of the cache that have the block's keys.
template <typename Shape>
struct ShareLayout {
  static constexpr int kSlices = Slice<Shape>::kSlices;
  static constexpr int kKeyBytes = Shape::kKeys * Shape::kRowBytes, kValueBytes = kKeyBytes / kSlices;
  static constexpr int kKeyArea = 2 * Shape::kWarps * kKeyBytes, kValueStage = 16384, kValueStages = 3;
  static_assert(kKeyArea >= 2 * kValueStage && kValueStage >= kKeyBytes);
  static constexpr int kScores = kKeyArea + kValueStage, kScoreBytes = Shape::kRows * Shape::kKeys * sizeof(float);
  static constexpr int kBlockTiles = (Shape::kSharedBytes - kScores) / (kScoreBytes + Shape::kKeys * sizeof(int));
  static constexpr int kRows = kScores + kBlockTiles * kScoreBytes;

  __device__ static int ValueStage(int stage) {
    return stage % kValueStages == 0 ? kKeyArea : (stage % kValueStages - 1) * kValueStage;
  }
};

inline constexpr int kUnseenRow = -1, kWrongRow = -2;

// Slices [first_slice, first_slice + slices) of a share, for all threads of a CTA.
template <typename Shape>
class ShareLoop {
 public:
  using Layout = ShareLayout<Shape>;
  using Part = Slice<Shape>;

  __device__ ShareLoop(const Params& p, const Plan& plan, const WorkTile& work, int share, int first_slice, int slices,
                       char* shared)
      : p_(p), plan_(plan), work_(work), share_(share), first_slice_(first_slice), slices_(slices), shared_(shared) {
    const int first = FirstKey(0);
    tiles_ = first < work.keys.end ? (work.keys.end - first - 1) / kStep + 1 : 0;
    stage_tiles_ = Layout::kValueStage / (slices * Layout::kValueBytes);
  }

  __device__ void Run(SoftmaxState<Part>& state) const {
    const bool adds = Warp() < slices_;
    Query<Shape> q;
#pragma unroll 1
    for (int first = 0; first < tiles_; first += Layout::kBlockTiles) {
      const int tiles = min(tiles_ - first, Layout::kBlockTiles);
      FindRows(first, tiles, q);
      __syncthreads();
      // Some warps add a stage, the others copy the stage after next. All copy the first two; those of the second one
      // replace the keys.
#pragma unroll 1
      for (int stage = -2; stage * stage_tiles_ < tiles; ++stage) {
        if (stage == -1) {
          ComputeAllScores(first, tiles, q);
          cp_async_wait_group<0>();
          __syncthreads();
        }
        if (stage >= 0 && adds) {
          AddStage(first, tiles, stage, state);
        } else {
          const int others = stage < 0 ? 0 : slices_ * kWarpSize;
          CopyValues(stage + 2, tiles, threadIdx.x - others, Shape::kThreads - others);
        }
        cp_async_commit_group();
        if (stage < 0) continue;
        cp_async_wait_group<1>();
        __syncthreads();
      }
    }
    cp_async_wait_group<0>();
  }

  // The slices of the share's O, and with the first one its m and l, to the workspace.
  __device__ void Store(const SoftmaxState<Part>& state, float2* m_l, float* o) const {
    const int slice = first_slice_ + Warp(), first = slice * Part::kDim;
    if (Warp() >= slices_) return;
    m_l += share_ * Shape::kRows, o += share_ * Shape::kRows * plan_.d;
    const auto store_m_l = [&](int row, float m, float l) {
      if (slice == 0) m_l[row] = {m, l};
    };
    const auto store_o = [&](int row, int column, float value) {
      if (first + column < plan_.d) o[row * plan_.d + first + column] = value;
    };
    StoreSoftmaxState<Part>(state, work_.rows, true, store_m_l, store_o);
  }

 private:
  static constexpr int kStep = Shape::kShares * Shape::kKeys, kParts = Shape::kKeys / 16;

  __device__ int FirstKey(int tile) const { return work_.begin + share_ * Shape::kKeys + tile * kStep; }
  __device__ int* Rows(int tile) const { return reinterpret_cast<int*>(shared_ + Layout::kRows) + tile * Shape::kKeys; }
  // A lane's part of S of 16 keys and eight rows is a float4.
  __device__ float4* Scores(int tile) const {
    return reinterpret_cast<float4*>(shared_ + Layout::kScores + tile * Layout::kScoreBytes) + Lane();
  }
  __device__ uint32_t Values(int stage, int slice, int tile) const {
    return shared_address(shared_) + Layout::ValueStage(stage) + (slice * stage_tiles_ + tile) * Layout::kValueBytes;
  }

  // The rows of the cache that have the keys of a block. The query's loads are in flight at the same time.
  __device__ void FindRows(int first, int tiles, Query<Shape>& q) const {
    constexpr int kCount = (Layout::kBlockTiles * Shape::kKeys - 1) / Shape::kThreads + 1;
    const int32_t* table = p_.block_tables + work_.seq * p_.max_blocks;
    const auto key_of = [&](int i) {
      const int number = i * Shape::kThreads + threadIdx.x;
      return FirstKey(first + number / Shape::kKeys) + number % Shape::kKeys;
    };
    int blocks[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      blocks[i] = table[plan_.block_divider.Quotient(min(key_of(i), work_.keys.end - 1))];
    }
    if (first == 0) LoadQuery<Shape>(p_, plan_, work_, q);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int number = i * Shape::kThreads + threadIdx.x, key = key_of(i), block = blocks[i];
      if (number >= tiles * Shape::kKeys) break;
      const int slot = plan_.block_divider.Remainder(key, plan_.block_divider.Quotient(key));
      const bool is_block = static_cast<uint32_t>(block) < plan_.blocks;
      Rows(0)[number] = key >= work_.keys.end ? kUnseenRow : is_block ? block * plan_.block_size + slot : kWrongRow;
    }
  }

  // A vector of a key, or `offset` bytes later of its values. What does not exist is zero.
  __device__ void CopyVector(uint32_t to, int row, int vector, int64_t offset) const {
    const bool copy = vector * 16 < plan_.row_bytes && row >= 0;
    const uint64_t stride = static_cast<uint32_t>(plan_.kv_heads) * plan_.row_bytes;
    const char* from = static_cast<const char*>(p_.kv_cache) + offset + work_.kv_head * plan_.row_bytes;
    cp_async_zfill(to, copy ? from + row * stride + vector * 16 : from, copy, plan_.policy);
  }

  // A key in a page that does not exist is NaN.
  __device__ void CopyKeys(uint32_t stage, int tile) const {
    const int first = Lane() / Shape::kVectors, vector = Lane() % Shape::kVectors;
#pragma unroll
    for (int i = first; i < Shape::kKeys; i += Shape::kCopyRows) {
      const int row = Rows(tile)[i];
      const uint32_t to = stage + Shape::Offset(i, vector);
      if (row == kWrongRow) {
        st_shared_v4(to, 0xffffffff);
      } else {
        CopyVector(to, row, vector, 0);
      }
    }
  }

  // The CTA's slices of a stage's values, by `threads` threads, a multiple of the slices' vectors.
  __device__ void CopyValues(int stage, int tiles, int thread, int threads) const {
    const int begin = stage * stage_tiles_, vectors = slices_ * Part::kVectors;
    const int keys = min(tiles - begin, stage_tiles_) * Shape::kKeys, step = threads / vectors;
    const int vector = thread % vectors, first = first_slice_ * Part::kVectors + vector;
    const uint32_t to = Values(stage, vector / Part::kVectors, 0);
#pragma unroll 4
    for (int key = thread / vectors; key < keys; key += step) {
      CopyVector(to + Part::Offset(key, vector % Part::kVectors), Rows(begin)[key], first, plan_.value_offset);
    }
  }

  // S of a block, a KV tile to a warp.
  __device__ void ComputeAllScores(int first, int tiles, const Query<Shape>& q) const {
    const uint32_t stages = shared_address(shared_) + Warp() * 2 * Layout::kKeyBytes;
    // Two iterations only copy.
    int stage = 0;
#pragma unroll 1
    for (int tile = Warp() - 2 * Shape::kWarps; tile < tiles; tile += Shape::kWarps) {
      if (tile >= 0) {
        cp_async_wait_group<1>();
        __syncwarp();
        float s[Shape::kTiles][kParts][4];
        ComputeScores<Shape>(p_, plan_, work_, work_.keys, q, stages + stage * Layout::kKeyBytes,
                             FirstKey(first + tile), s);
#pragma unroll
        for (int i = 0; i < Shape::kTiles * kParts; ++i) {
          const float (&part)[4] = s[i / kParts][i % kParts];
          Scores(tile)[i * kWarpSize] = {part[0], part[1], part[2], part[3]};
        }
        __syncwarp();
      }
      const int next = tile + 2 * Shape::kWarps;
      if (next < tiles) CopyKeys(stages + stage * Layout::kKeyBytes, next);
      stage ^= 1;
      cp_async_commit_group();
    }
  }

  template <typename To>
  __device__ void LoadScores(int tile, To& s, int to) const {
#pragma unroll
    for (int i = 0; i < Shape::kTiles * kParts; ++i) {
      const float4 part = Scores(tile)[i * kWarpSize];
      float (&values)[4] = s[i / kParts][to + i % kParts];
      values[0] = part.x, values[1] = part.y, values[2] = part.z, values[3] = part.w;
    }
  }

  // Adds a stage's KV tiles to the warp's slice: several at once if m stays and all tokens see all keys, since then
  // nothing but O waits for the KV tile before.
  __device__ void AddStage(int first, int tiles, int stage, SoftmaxState<Part>& state) const {
    using Wide = WideSlice<Shape>;
    const int begin = stage * stage_tiles_, count = min(tiles - begin, stage_tiles_);
    int tile = 0;
    while (tile < count) {
      const uint32_t values = Values(stage, Warp(), tile);
      const int key = FirstKey(first + begin + tile), last = FirstKey(first + begin + tile + Wide::kCount - 1);
      if (tile + Wide::kCount <= count && !TokensDiffer<Part>(work_.keys, key) &&
          !TokensDiffer<Part>(work_.keys, last)) {
        float s[Shape::kTiles][Wide::kKeys / 16][4], max[Shape::kTiles][2];
#pragma unroll
        for (int i = 0; i < Wide::kCount; ++i) LoadScores(begin + tile + i, s, i * kParts);
        if (!__any_sync(kAllLanes, FindMaxima<Wide>(s, state, max))) {
          AddProbabilities<Wide>(plan_, work_, false, values, key, s, state);
          tile += Wide::kCount;
          continue;
        }
      }
      float s[Shape::kTiles][kParts][4];
      LoadScores(begin + tile, s, 0);
      AddScores<Part>(plan_, work_, work_.keys, values, key, s, state);
      ++tile;
    }
  }

  const Params& p_;
  const Plan& plan_;
  const WorkTile& work_;
  int share_, first_slice_, slices_, tiles_, stage_tiles_;
  char* shared_;
};

}  // namespace paged_attention::decode
