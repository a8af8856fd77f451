// How a warp of the decode kernel feeds its ring of keys and values in shared memory.
#pragma once

#include "paged_attention/decode/traits.cuh"
#include "pyxla/device/ptx/cp_async.cuh"
#include "pyxla/device/ptx/memory.cuh"

namespace paged_attention::decode {

using namespace pyxla::ptx;

// A CTA's next work tiles. The one after `number` is known while all warps are at `number`.
class WorkQueue {
 public:
  // The first three are the CTA's own. Then it takes the next one of all whenever it has finished one: the SMs of one
  // GPU differ by a fifth in how fast they read.
  static constexpr int kOwn = 3;

  // The CTA's own work tiles, one of each of the grid's first rounds, in rising order. After the first round they count
  // from the round's end: long work tiles come first, so a CTA that has one gets short ones after it. One thread,
  // before all wait for it.
  __device__ void SetOwn(int cta, int ctas) {
    Set(0, cta);
    for (int round = 1; round < kOwn; ++round) Set(round, (round + 1) * ctas - 1 - cta);
  }

  // One thread, before all wait for it.
  __device__ void Set(int number, int index) { indices_[Slot(number)] = index; }
  __device__ int Index(int number) const { return indices_[Slot(number)]; }

 private:
  static constexpr int kKept = 4;

  // Opaque to the compiler: else it would keep the address in a register.
  __device__ static unsigned Slot(unsigned number) {
    asm volatile("" : "+r"(number));
    return number % kKept;
  }

  int indices_[kKept];
};

// Feeds a warp's ring with the warp's KV tiles, kKeys keys each, work tile after work tile. A KV tile is found one step
// before its copies start, so that its block table entries arrive while the warp works on earlier KV tiles.
template <typename Shape>
class KvLoader {
 public:
  static constexpr int kWorks = 2;  // work tiles that are kept: the current one, and the next one

  // works: the warp's, in shared memory: it finds each work tile once.
  __device__ KvLoader(const Params& p, const Plan& plan, const typename Shape::Scheduler& scheduler,
                      const WorkQueue& queue, uint32_t ring, WorkTile (&works)[kWorks])
      : p_(p), plan_(plan), scheduler_(scheduler), queue_(queue), ring_(ring), works_(works) {}

  // Whether a KV tile is found.
  __device__ bool HasKvTile() const { return key_ < end_; }

  // Starts the copies of the KV tile that is found, if one is, into `stage`, and finds the next one, if it is of the
  // step's work tile or of the next. Returns whether copies began. Commits a group in any case, an empty one if none
  // began. A step is a pass of a work tile.
  __device__ bool Step(int step, int stage) {
    const bool copies = HasKvTile();
    if (copies) {
      const uint32_t to = ring_ + stage * Shape::kStageBytes;
      if (IsWhole()) {
        CopyGroups(to);
      } else {
        CopyRows(to);
      }
      key_ += Shape::kShares * Shape::kKeys;
    }
    cp_async_commit_group();
    Find(step);
    return copies;
  }

 private:
  static constexpr int kUnseen = -1, kWrong = -2;
  static constexpr int kLineEntries = 128 / sizeof(int32_t);
  // A KV tile's entries of the block table: one for each group of keys, or one for each key, a lane each.
  static constexpr int kGroup = 16, kGroups = Shape::kKeys / kGroup;
  static constexpr int kLookups = (Shape::kKeys + kWarpSize - 1) / kWarpSize;

  __device__ void Find(int step) {
    while (!HasKvTile()) {
      if (step_ >= 0 && step_ % Shape::kPasses < Shape::kPasses - 1) {
        ++step_;
        key_ = works_[Number(step_) % kWorks].begin + Shape::Share(step_ % Shape::kPasses) * Shape::kKeys;
        continue;
      }
      if (Shape::kPasses == 1) step_ = max(step_, step - 1);  // work tiles without a KV tile of the warp's went by
      const int next = Number(step_ + Shape::kPasses);
      const int index = next <= Number(step) + 1 ? queue_.Index(next) : scheduler_.Count();
      if (index >= scheduler_.Count()) return;
      step_ = next * Shape::kPasses;
      Enter(index);
    }
    LookUp();
  }

  // The work tile's, of a step.
  __device__ static int Number(int step) { return step / Shape::kPasses; }

  __device__ void Enter(int index) {
    const int lane = Lane(), vector = lane % Shape::kVectors * 16;
    const WorkTile work = scheduler_.Find(p_, plan_, index);
    if (lane == 0) works_[Number(step_) % kWorks] = work;
    if (Shape::kPasses > 1) __syncwarp();
    PrefetchQuery(work);
    key_ = work.begin + Shape::Share(0) * Shape::kKeys;
    end_ = work.keys.end;
    last_whole_ = plan_.has_groups && work.begin % kGroup == 0 ? end_ - Shape::kKeys : -1;
    table_ = p_.block_tables + work.seq * p_.max_blocks;
    head_ = work.kv_head * plan_.row_bytes + (vector < plan_.row_bytes ? vector : 0);
    // All of the work tile's table at once, so that the KV tiles after the first find their entries in L2.
    const int block = plan_.block_divider.Quotient(work.begin) + lane * kLineEntries;
    if (work.begin < work.keys.end && block <= plan_.block_divider.Quotient(work.keys.end - 1)) {
      prefetch_l2(table_ + block);
    }
  }

  // All lines of the query's rows, one to a thread.
  __device__ void PrefetchQuery(const WorkTile& work) const {
    constexpr int kLineBytes = 128, kLines = (Shape::kDim * 2 + kLineBytes - 1) / kLineBytes;
    const int thread = OpaqueThread(), row = thread / kLines, column = thread % kLines * kLineBytes / 2;
    if (row >= work.rows || column >= plan_.d) return;
    const Row place = RowOf(plan_, work, row);
    const int64_t of_query = int64_t{(work.query_row + place.token) * plan_.heads + place.head} * plan_.d;
    prefetch_l2(static_cast<const uint16_t*>(p_.query) + of_query + column);
  }

  // Whether each group's keys are in one page and all of them belong to the work tile.
  __device__ bool IsWhole() const { return key_ <= last_whole_; }

  // Loads the entries.
  __device__ void LookUp() {
    const bool is_whole = IsWhole();
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int offset = is_whole ? i * kGroup : i * kWarpSize + Lane(), key = key_ + offset;
      slots_[i] = -1;
      if (offset < Shape::kKeys && key < end_) {
        const int block = plan_.block_divider.Quotient(key);
        slots_[i] = plan_.block_divider.Remainder(key, block);
        blocks_[i] = table_[block];
      }
    }
  }

  __device__ bool IsBlock(int block) const { return static_cast<uint32_t>(block) < plan_.blocks; }

  // The place of this lane's vector of the first row in a stage; whether a row has that vector; bytes from a key's row
  // in the cache to the next key's.
  __device__ uint32_t Place() const { return Shape::Offset(Lane() / Shape::kVectors, Lane() % Shape::kVectors); }
  __device__ bool HasVector() const { return Lane() % Shape::kVectors * 16 < plan_.row_bytes; }
  __device__ uint32_t Stride() const { return static_cast<uint32_t>(plan_.kv_heads) * plan_.row_bytes; }

  // What the warp copies: keys and values, or if two warps have a ring, one of both.
  static constexpr int kParts = 2 / Shape::kGroups;
  __device__ static bool AreValues(int part) { return Shape::kGroups == 1 ? part : Shape::Group(); }

  // A key in a page that does not exist is NaN, which reaches the rows that see it; its values are zero.
  __device__ void CopyGroups(uint32_t stage) {
    const uint32_t place = Place(), stride = Stride();
    const bool has_vector = HasVector();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int block = blocks_[group];
      const uint32_t row = static_cast<uint32_t>(block) * plan_.block_size + slots_[group] + Lane() / Shape::kVectors;
      uint64_t keys = reinterpret_cast<uint64_t>(p_.kv_cache) + head_ + uint64_t{row} * stride,
               values = keys + plan_.value_offset;
      // Opaque: else the compiler computes these sums again for each row.
      asm volatile("" : "+l"(keys), "+l"(values));
      const auto place_of = [&](int i) { return stage + (place ^ Shape::Swizzle(i)) + i * Shape::kRowBytes; };
      if (!IsBlock(block)) {
#pragma unroll
        for (int i = group * kGroup; i < (group + 1) * kGroup; i += Shape::kCopyRows) {
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            st_shared_v4(place_of(i) + AreValues(part) * Shape::kValues, AreValues(part) ? 0 : 0xffffffff);
          }
        }
        continue;
      }
#pragma unroll
      for (int i = group * kGroup; i < (group + 1) * kGroup; i += Shape::kCopyRows) {
        const uint64_t offset = uint64_t{static_cast<uint32_t>(i % kGroup)} * stride;
        const uint32_t to = place_of(i);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const auto* from = reinterpret_cast<const void*>((AreValues(part) ? values : keys) + offset);
          cp_async_zfill(to + AreValues(part) * Shape::kValues, from, has_vector, plan_.policy);
        }
      }
    }
  }

  // The same key by key; what a row does not have is zero.
  __device__ void CopyRows(uint32_t stage) {
    const uint32_t place = Place(), stride = Stride();
    const bool has_vector = HasVector();
    // This lane's keys: the row of the cache, or why there is none.
    int rows[kLookups];
#pragma unroll
    for (int i = 0; i < kLookups; ++i) {
      rows[i] = slots_[i] < 0 ? kUnseen : IsBlock(blocks_[i]) ? blocks_[i] * plan_.block_size + slots_[i] : kWrong;
    }
#pragma unroll
    for (int i = 0; i < Shape::kKeys; i += Shape::kCopyRows) {
      const int row = __shfl_sync(kAllLanes, rows[i / kWarpSize], i + Lane() / Shape::kVectors);
      const bool copy = has_vector && row >= 0;
      const char* keys =
          static_cast<const char*>(p_.kv_cache) + head_ + uint64_t{static_cast<uint32_t>(copy ? row : 0)} * stride;
      const uint32_t to = stage + (place ^ Shape::Swizzle(i)) + i * Shape::kRowBytes;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (AreValues(part)) {
          cp_async_zfill(to + Shape::kValues, keys + plan_.value_offset, copy, plan_.policy);
        } else if (row == kWrong) {
          st_shared_v4(to, 0xffffffff);
        } else {
          cp_async_zfill(to, keys, copy, plan_.policy);
        }
      }
    }
  }

  const Params& p_;
  const Plan& plan_;
  const typename Shape::Scheduler& scheduler_;
  const WorkQueue& queue_;
  int step_ = -Shape::kPasses, key_ = 0, end_ = 0;
  int last_whole_ = -1;  // the last key at which a KV tile is whole
  uint32_t ring_;
  WorkTile (&works_)[kWorks];
  int blocks_[kGroups] = {}, slots_[kGroups] = {};
  const int32_t* table_ = nullptr;
  uint32_t head_ = 0;  // bytes from a key to the head, and there to this lane's vector
};

}  // namespace paged_attention::decode
