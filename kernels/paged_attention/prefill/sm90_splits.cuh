// The prefill kernel for sm_90a where keys are divided into splits. The consumers store their (m, l, O) in a slot of
// the workspace. If each split of the call has one, a CTA merges a share of the rows of each tile that it had a split
// of, after all its work. Otherwise the last CTA to store a split of a tile merges it, and its slots are used again.
#pragma once

#include "paged_attention/prefill/sm90_pipeline.cuh"
#include "paged_attention/splits.cuh"

namespace paged_attention {
namespace prefill {
namespace sm90 {

// Of one CTA; each function is for all consumers.
template <typename S>
class SplitStore {
 public:
  __device__ SplitStore(const Params& p, const Plan& plan, const Workspace& workspace, SharedStorage<S>& shared)
      : p_(p), plan_(plan), workspace_(workspace), shared_(shared) {}

  // O of rows `row` and row + 8 of the tile, with their m and l.
  template <int kColumns>
  __device__ void Store(const WorkTile& work, const float (&o)[kColumns][4], int row, const Softmax& softmax,
                        float factor) const {
    if (!SharesMerges(shared_)) WaitForSlot(work);
    const int64_t slot_row = int64_t{SlotOf(work, work.tile.split)} * shared_.slot_rows;
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 m_l = softmax.MaximumAndSum(r, factor);
      const int64_t to = slot_row + row + 8 * r;
      if (row + 8 * r >= work.tile.rows) continue;
      if (lane % 4 == 0) workspace_.m_l[to] = m_l;
      float* columns = workspace_.o + to * S::kHeadDim + 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        *reinterpret_cast<float2*>(columns + 8 * j) = {o[j][2 * r], o[j][2 * r + 1]};
      }
    }
    Synchronize();
    if (SharesMerges(shared_)) {
      if (threadIdx.x == 0) {
        shared_.shares[shared_.share_count++] = work;
        atom_add_release_gpu(Counter(work), 1);
      }
      return;
    }
    if (threadIdx.x == 0) {
      shared_.is_last_split = atom_add_release_gpu(Counter(work), 1) == work.tile.splits - 1;
      __threadfence();
    }
    Synchronize();
    if (!shared_.is_last_split) return;
#pragma unroll 1
    for (int row = threadIdx.x / kWarpSize; row < work.tile.rows; row += kWarps) MergeRow(work, row);
    Synchronize();
    if (threadIdx.x == 0) atom_add_release_gpu(Counter(work), 1);  // the slots are free
  }

  // After all work: no CTA that this one waits for waits itself before it has stored its splits.
  __device__ void MergeShares() const {
    Synchronize();
    const int shares = shared_.share_count, lane = threadIdx.x % kWarpSize;
    if (shares == 0) return;
    const WorkTile& mine = shared_.shares[min(lane, shares - 1)];
    while (__any_sync(kAllLanes, ld_acquire_gpu(Counter(mine)) < mine.tile.splits)) __nanosleep(20);
    // The warps take the rows of all shares in turn.
    int number = threadIdx.x / kWarpSize;
#pragma unroll 1
    for (int i = 0; i < shares; ++i) {
      const WorkTile& work = shared_.shares[i];
      const int splits = work.tile.splits, count = (work.tile.rows - work.tile.split + splits - 1) / splits;
#pragma unroll 1
      for (; number < count; number += kWarps) MergeRow(work, work.tile.split + number * splits);
      number -= count;
    }
  }

 private:
  using T = typename S::T;
  static constexpr int kWarps = S::kConsumerThreads / kWarpSize;

  __device__ static void Synchronize() { bar_sync(3, S::kConsumerThreads); }

  // Splits of a tile have consecutive numbers, and the slots of a number are those of the kv heads.
  __device__ int SlotOf(const WorkTile& work, int split) const {
    return (work.number - work.tile.split + split) % shared_.ring * plan_.kv_heads + work.kv_head;
  }

  __device__ int* Counter(const WorkTile& work) const { return workspace_.Counter(plan_, work.tile, work.kv_head); }

  // Work is taken from the highest number on, so what had the slot before has a higher one, and waits for no lower one.
  __device__ void WaitForSlot(const WorkTile& work) const {
    for (int number = work.number + shared_.ring; number < shared_.count; number += shared_.ring) {
      const Tile earlier = shared_.tiles.Find(p_, plan_, number);
      if (earlier.splits == 1) continue;
      while (ld_acquire_gpu(workspace_.Counter(plan_, earlier, work.kv_head)) <= earlier.splits) __nanosleep(100);
      return;
    }
  }

  __device__ void MergeRow(const WorkTile& work, int index) const {
    constexpr int kCount = S::kHeadDim / kWarpSize, kUnroll = kCount == 8 ? 4 : 8;
    const int column = threadIdx.x % kWarpSize * kCount;
    const auto slot_of = [&](int split) { return SlotOf(work, split); };
    MergedRow<kCount> rows[1];
    MergeSplits<kCount, kUnroll, 1>(workspace_.m_l, workspace_.o, shared_.slot_rows, S::kHeadDim, work.tile.splits,
                                    {index}, column, slot_of, rows);
    const MergedRow<kCount>& merged = rows[0];
    const Row row = FindRow(plan_, work.tile, work.kv_head, index);
    float lse, normalizer = Normalizer(p_, row, merged.m, merged.l, lse);
    if (S::kIsFloat8 && p_.kv_scales) normalizer *= p_.kv_scales[p_.kv_heads + work.kv_head];
    if (p_.lse && column == 0) p_.lse[row.index] = lse;
    Columns<T, kCount> out;
#pragma unroll
    for (int i = 0; i < kCount; ++i) out.values[i] = static_cast<T>(merged.o.values[i] * normalizer);
    *reinterpret_cast<Columns<T, kCount>*>(static_cast<T*>(p_.out) + row.index * S::kHeadDim + column) = out;
  }

  const Params& p_;
  const Plan& plan_;
  const Workspace& workspace_;
  SharedStorage<S>& shared_;
};

}  // namespace sm90
}  // namespace prefill
}  // namespace paged_attention
