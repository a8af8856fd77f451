// The shape of the decode kernel's blocks, and how a warp feeds its ring of keys and values in shared memory.
#pragma once

#include "paged_attention/paged_attention_decode_items.cuh"
#include "paged_attention/paged_attention_mma.cuh"

namespace paged_attention::decode {

__host__ __device__ constexpr int Max(int a, int b) { return a > b ? a : b; }

// This thread's lane, which the compiler takes for a new number each time: it would keep all that follows from it in
// registers throughout, and run out of them.
__device__ inline int Lane() {
  int lane = threadIdx.x % kWarpSize;
  asm volatile("" : "+r"(lane));
  __builtin_assume(0 <= lane && lane < kWarpSize);
  return lane;
}

// A block's shape for rows of kDim elements of T, of which head_dim are in use; keys and values are Kv, T or float8.
template <typename T_, typename Kv, int kDim_, int kTiles_>
struct Shape {
  using T = T_;
  static constexpr bool kIsFloat8 = sizeof(Kv) == 1;
  static constexpr int kDim = kDim_;

  // Columns of the products: query rows of an item in tiles of eight.
  static constexpr int kTiles = kTiles_, kRows = kTiles * 8;
  static constexpr int kWarps = kDim == 256 ? 3 : 6, kThreads = kWarps * kWarpSize;
  static constexpr int kBlocks = kTiles == 1 ? 2 : 1;

  // Fewer entries where more rows' maxima and weights need the place.
  using BlockItems = Items<kThreads, kTiles == 1 ? 8 : 4>;

  // Each warp has a ring of its own. A stage holds as many keys and their values.
  static constexpr int kStages = 2;
  static constexpr int kRowBytes = kDim * sizeof(Kv);
  static constexpr int kStageBytes = Max(8192, kDim * 64);
  static constexpr int kKeys = kStageBytes / (2 * kRowBytes), kValues = kKeys * kRowBytes;
  static constexpr int kRingBytes = kStages * kStageBytes, kSharedBytes = kWarps * kRingBytes;
  static_assert(kSharedBytes <= 96 * 1024,
                "fits twice into Hopper's shared memory; with 3 KB more, once into any of sm_80 and newer");
  static_assert(kRows * kDim * sizeof(float) <= kStageBytes, "a warp's sums take the place of a stage");
  static_assert(kKeyUnit % (kWarps * kKeys) == 0 && kKeys % 16 == 0);

  // 16-byte vectors of a row. A warp copies kCopyRows rows at a time, a vector to a lane.
  static constexpr int kVectors = kRowBytes / 16, kCopyRows = kWarpSize / kVectors;
  static constexpr int kLookups = (kKeys + kWarpSize - 1) / kWarpSize;

  // Where a row's vector lies: no two of the eight rows of a matrix in the same banks.
  __device__ static int Offset(int row, int vector) { return row * kRowBytes + (vector * 16 ^ Turn(row)); }
  __device__ static int Turn(int row) { return (kVectors >= 8 ? row & 7 : row / 2 & 3) * 16; }

  // The same for a warp's sums, float [kRows][kDim].
  __device__ static int SumOffset(int row, int column) { return row * kDim + (column ^ (row / 2 & 3) * 8); }
};

// The numbers of a block's items. Which item comes next, is known one item ahead: that of `number` + 1 while all warps
// are at `number`.
class Turns {
 public:
  // The first three are the block's own; then it takes the next one of all, as fast as it gets on: the multiprocessors
  // of one GPU differ by a fifth in how fast they read.
  static constexpr int kOwn = 3;

  // One thread, before all wait for it.
  __device__ void Set(int number, int index) { indices_[number % kKept] = index; }
  __device__ int Index(int number) const { return indices_[number % kKept]; }

 private:
  static constexpr int kKept = 4;
  int indices_[kKept];
};

// Feeds a warp's ring: the slabs of kKeys keys that are the warp's, item after item.
template <typename Shape>
class Loader {
 public:
  __device__ Loader(const Params& p, const Plan& plan, const typename Shape::BlockItems& items, const Turns& turns,
                    int count, uint32_t ring)
      : p_(p), plan_(plan), items_(items), turns_(turns), count_(count), ring_(ring), stage_(ring) {}

  // Starts the copies of the next slab, if it is of the item that the block is at or of the next one; and finds the
  // slab behind it.
  __device__ bool Load(int number) {
    if (!has_slab_) Find(number);
    if (!has_slab_) return false;
    const int lane = Lane();
    // This lane's keys: the row of the cache, or why there is none.
    int rows[Shape::kLookups];
    bool all = true;
#pragma unroll
    for (int i = 0; i < Shape::kLookups; ++i) {
      const bool is_block = 0 <= blocks_[i] && blocks_[i] < p_.blocks;
      rows[i] = is_block ? blocks_[i] * static_cast<int>(p_.block_size) + slots_[i] : kWrong;
      if (slots_[i] < 0) rows[i] = kUnseen;
      all = all && (rows[i] >= 0 || i * kWarpSize + lane >= Shape::kKeys);
    }
    if (__all_sync(kAllLanes, all)) {
      CopyRows<true>(rows);
    } else {
      CopyRows<false>(rows);
    }
    CommitCopies();
    stage_ = stage_ == ring_ + (Shape::kStages - 1) * Shape::kStageBytes ? ring_ : stage_ + Shape::kStageBytes;
    key_ += Shape::kWarps * Shape::kKeys;
    Find(number);
    return true;
  }

 private:
  static constexpr int kUnseen = -1, kWrong = -2;
  static constexpr int kLineEntries = 128 / sizeof(int32_t);

  __device__ void Find(int number) {
    has_slab_ = false;
    while (key_ >= end_) {
      number_ = max(number_, number - 1);  // items without a slab of the warp's went by
      const int index = number_ <= number ? turns_.Index(number_ + 1) : count_;
      if (index >= count_) return;
      ++number_;
      Enter(index);
    }
    has_slab_ = true;
    LookUp();
  }

  __device__ void Enter(int index) {
    const Item item = items_.Find(p_, plan_, index);
    key_ = item.begin + static_cast<int>(threadIdx.x) / kWarpSize * Shape::kKeys;
    end_ = item.end;
    table_ = p_.block_tables + item.seq * p_.max_blocks;
    keys_ = static_cast<const char*>(p_.kv_cache) + item.kv_head * plan_.row_bytes;
    // All of the item's table at once, so that the slabs behind the first one find theirs in L2.
    const int block = plan_.block_divider.Quotient(item.begin) + Lane() * kLineEntries;
    if (item.begin < item.end && block <= plan_.block_divider.Quotient(item.end - 1)) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(table_ + block));
    }
  }

  // Reads the next slab's entries of the block table ahead: they come while the warp works on the slabs before it.
  __device__ void LookUp() {
#pragma unroll
    for (int i = 0; i < Shape::kLookups; ++i) {
      const int offset = i * kWarpSize + Lane(), key = key_ + offset;
      slots_[i] = -1;
      if (offset >= Shape::kKeys || key >= end_) continue;
      const int block = plan_.block_divider.Quotient(key);
      slots_[i] = plan_.block_divider.Remainder(key, block);
      blocks_[i] = table_[block];
    }
  }

  // What a row does not have is zero. A key in a block that does not exist is NaN, which reaches the rows that see it.
  template <bool kAll>
  __device__ void CopyRows(const int (&rows)[Shape::kLookups]) {
    const int lane = Lane(), vector = lane % Shape::kVectors, first = lane / Shape::kVectors;
    const bool has_vector = vector * 16 < plan_.row_bytes;
    const uint32_t stride = static_cast<uint32_t>(plan_.kv_heads) * plan_.row_bytes;
    const uint32_t place = Shape::Offset(first, vector);
    uint64_t keys = reinterpret_cast<uint64_t>(keys_) + (has_vector ? vector * 16 : 0);
    uint64_t values = keys + plan_.value_offset;
    // Sums whose parts the compiler would add anew for each row.
    asm volatile("" : "+l"(keys), "+l"(values));
#pragma unroll
    for (int i = 0; i < Shape::kKeys; i += Shape::kCopyRows) {
      const int row = __shfl_sync(kAllLanes, rows[i / kWarpSize], i + first);
      const bool copy = has_vector && (kAll || row >= 0);
      const uint64_t offset = uint64_t{static_cast<uint32_t>(kAll || copy ? row : 0)} * stride;
      const uint32_t to = stage_ + (place ^ Shape::Turn(i)) + i * Shape::kRowBytes;
      if (!kAll && row == kWrong) {
        SetSixteenBytes(to, 0xffffffff);
      } else {
        CopyOrZero(to, reinterpret_cast<const void*>(keys + offset), copy);
      }
      CopyOrZero(to + Shape::kValues, reinterpret_cast<const void*>(values + offset), copy);
    }
  }

  const Params& p_;
  const Plan& plan_;
  const typename Shape::BlockItems& items_;
  const Turns& turns_;
  int count_, number_ = -1, key_ = 0, end_ = 0;
  bool has_slab_ = false;
  uint32_t ring_, stage_;
  int blocks_[Shape::kLookups] = {}, slots_[Shape::kLookups] = {};
  const int32_t* table_ = nullptr;
  const char* keys_ = nullptr;
};

}  // namespace paged_attention::decode
