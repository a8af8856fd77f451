// What the tensor-core kernels store of a split of the keys: (m, l, O) of each row, and how a row's are merged.
#pragma once

#include <algorithm>

#include "paged_attention/sequences.cuh"

namespace paged_attention {

// kCount neighbouring columns, in accesses as wide as their count allows.
template <typename T, int kCount>
struct alignas(std::min(sizeof(T) * (kCount & -kCount), size_t{16})) Columns {
  T values[kCount];
};

// 2^(s - m); m is minus infinity if there was no key so far.
__device__ inline float Exp2Minus(float s, float m) { return Exp2(s - (m == -INFINITY ? 0.0f : m)); }

// A row's m and l of all splits, and kCount columns of O from the lane's `column` on.
template <int kCount>
struct MergedRow {
  float m = -INFINITY, l = 0;
  Columns<float, kCount> o = {};
};

// Merges the splits of kRows rows in their order, for all lanes of a warp. m_l and o have them at slot_of(split), in
// slots of slot_rows rows. Few instructions, because no CTA has executed them before and all of them come from memory.
// The loads of kGroups times kUnroll splits of all rows are under way together: beside other CTAs' loads of keys each
// takes microseconds.
template <int kCount, int kUnroll, int kGroups, int kRows, typename SlotOf>
__device__ inline void MergeSplits(const float2* m_l, const float* o, int slot_rows, int d, int splits,
                                   const int (&rows)[kRows], int column, SlotOf slot_of,
                                   MergedRow<kCount> (&merged)[kRows]) {
  using Part = std::conditional_t<kCount % 4 == 0, float4, float2>;
  constexpr int kPartColumns = sizeof(Part) / sizeof(float);
  const int lane = threadIdx.x % kWarpSize;
  const float* sources[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) sources[r] = o + rows[r] * d + (column < d ? column : 0);
#pragma unroll 1
  for (int begin = 0; begin < splits; begin += kGroups * kUnroll) {
    // The lane of a split's number has its slot, m and l. A split that does not exist loads the last one, without
    // use: with a condition at each load the compiler makes every load wait for the one before it.
    const int slot = slot_of(min(begin + lane, splits - 1));
    float2 mine[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) mine[r] = __ldcg(m_l + int64_t{slot} * slot_rows + rows[r]);
    Columns<float, kCount> parts[kGroups][kUnroll][kRows];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (group > 0 && begin + group * kUnroll >= splits) continue;
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int offset = __shfl_sync(kAllLanes, slot, group * kUnroll + i) * (slot_rows * d);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float* source = sources[r] + offset;
#pragma unroll
          for (int j = 0; j < kCount; j += kPartColumns) {
            reinterpret_cast<Part&>(parts[group][i][r].values[j]) = __ldcg(reinterpret_cast<const Part*>(source + j));
          }
        }
      }
    }
    // The compiler moves no load past this, to its first use.
    __syncwarp();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int start = begin + group * kUnroll;
      if (group > 0 && start >= splits) continue;
      const bool is_split = lane / kUnroll == group && begin + lane < splits;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        MergedRow<kCount>& row = merged[r];
        float largest = fmaxf(row.m, is_split ? mine[r].x : -INFINITY);
#pragma unroll
        for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
        }
        const float split_rescale = Exp2Minus(mine[r].x, largest), rescale = Exp2Minus(row.m, largest);
        row.m = largest;
        row.l = row.l * rescale + (is_split ? split_rescale * mine[r].y : 0);
#pragma unroll
        for (int j = 0; j < kCount; ++j) row.o.values[j] *= rescale;
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          const float part_rescale = __shfl_sync(kAllLanes, split_rescale, group * kUnroll + i);
          if (start + i >= splits) continue;
#pragma unroll
          for (int j = 0; j < kCount; ++j) row.o.values[j] += part_rescale * parts[group][i][r].values[j];
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
      merged[r].l += __shfl_xor_sync(kAllLanes, merged[r].l, lanes);
    }
  }
}

}  // namespace paged_attention
