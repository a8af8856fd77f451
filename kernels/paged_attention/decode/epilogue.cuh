// The splits' (m, l, O) in the workspace, their reduction, and the result.
#pragma once

#include "paged_attention/decode/softmax.cuh"

namespace paged_attention::decode {

struct Workspace {
  int* counters;
  int* next_work;  // work tiles taken beyond each CTA's own
  float2* m_l;     // [slots][rows]
  float* o;        // [slots][rows][d]
  int* few_counters;
  float2* few_m_l;  // [kFewTiles][warps][rows]
  float* few_o;     // [kFewTiles][warps][rows][d]

  __device__ Workspace(const Params& p, const Plan& plan)
      : counters(static_cast<int*>(p.workspace) + plan.prefill_counters),
        next_work(static_cast<int*>(p.workspace) + plan.counters - 1),
        m_l(reinterpret_cast<float2*>(next_work + 1)),
        o(reinterpret_cast<float*>(m_l + int64_t{plan.slots} * plan.tile_rows)),
        few_counters(next_work - kFewTiles),
        few_m_l(reinterpret_cast<float2*>(o + int64_t{plan.slots} * plan.tile_rows * plan.d)),
        few_o(reinterpret_cast<float*>(few_m_l + kFewTiles * kMostWarps * plan.tile_rows)) {}

  __device__ int* Counter(const Plan& plan, const WorkTile& work) const {
    return counters + (int64_t{work.seq} * plan.tiles + work.row / plan.tile_rows) * plan.kv_heads + work.kv_head;
  }
};

// A split whose (m, l, O) are stored, and its number among all work tiles.
struct StoredSplit {
  WorkTile work;
  int index;
};

// The tiles that this CTA is to reduce, because it was the last one to store a split of them.
struct Reductions {
  static constexpr int kMost = 4;
  int count;
  StoredSplit splits[kMost];

  // One thread, after all have stored the split.
  __device__ void Arrive(const Plan& plan, const Workspace& workspace, const StoredSplit& split) {
    if (atom_add_release_gpu(workspace.Counter(plan, split.work), 1) != split.work.splits - 1) return;
    __threadfence();
    splits[count++] = split;
  }
};

// Normalizes a row's columns from `column` on and stores them, and its lse. Adds the sink.
template <typename Shape, int kCount>
__device__ inline void StoreRow(const Params& p, const Plan& plan, const WorkTile& work, int row, int column, float m,
                                float l, const Columns<float, kCount>& o) {
  const Row place = RowOf(plan, work, row);
  const int64_t out_row = int64_t{work.query_row + place.token} * plan.heads + place.head;
  float scale = p.kv_scales == nullptr ? 1.0f : p.kv_scales[plan.kv_heads + work.kv_head];
  if (p.sinks != nullptr) {
    const float sink = p.sinks[place.head] * kLog2E, both = fmaxf(m, sink), rescale = Exp2Minus(m, both);
    l = l * rescale + Exp2Minus(sink, both);
    scale *= rescale;
    m = both;
  }
  if (p.lse != nullptr && column == 0) p.lse[out_row] = (m + log2f(l)) * kLn2;
  if (column >= plan.d) return;
  const float factor = scale / l;
  const auto store = [&](auto type) {
    using T = decltype(type);
    Columns<T, kCount> result;
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.values[i] = static_cast<T>(o.values[i] * factor);
    *reinterpret_cast<Columns<T, kCount>*>(static_cast<T*>(p.out) + out_row * plan.d + column) = result;
  };
  if (Shape::kIsFloat8 && p.dtype == Dtype::kBFloat16) {
    store(__nv_bfloat16());
  } else {
    store(typename Shape::T());
  }
}

// The (m, l, O) of a CTA's warps in shared memory.
template <typename Shape>
struct SharedWarps {
  const char* rings;
  const float (&m)[Shape::kWarps][Shape::kRows], (&l)[Shape::kWarps][Shape::kRows];
  const int (&stages)[Shape::kWarps];  // that have the warps' O, or -1: a warp had no KV tile

  __device__ float2 MaximumAndSum(int warp, int row) const { return {m[warp][row], l[warp][row]}; }
  __device__ bool HasO(int warp) const { return stages[warp] >= 0; }
  template <int kCount>
  __device__ void LoadO(int warp, int row, int column, Columns<float, kCount>& o) const {
    const char* stage = rings + warp * Shape::kRingBytes + stages[warp] * Shape::kStageBytes;
    o = *reinterpret_cast<const Columns<float, kCount>*>(stage + Shape::OOffset(row, column) * 4);
  }
};

// Merges the (m, l, O) of a work tile's warps, in their order: into the result, or into the split's slot of the
// workspace.
template <typename Shape, typename Warps>
__device__ inline void MergeWarps(const Params& p, const Plan& plan, const WorkTile& work, int index,
                                  const Workspace& workspace, const Warps& warps) {
  constexpr int kCount = Shape::kDim / kWarpSize;
  const bool is_split = work.splits > 1;
  const int64_t slot_row = is_split ? int64_t{index % plan.slots} * Shape::kRows : 0;
  for (int row = Warp(); row < work.rows; row += Shape::kWarps) {
    const int column = Lane() * kCount;
    // All loads, before the first is waited for; none of a stage that may be refilled meanwhile.
    float2 m_l[Shape::kWarps];
    Columns<float, kCount> parts[Shape::kWarps] = {};
    float m = -INFINITY, l = 0;
    Columns<float, kCount> o = {};
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      m_l[w] = warps.MaximumAndSum(w, row);
      if (warps.HasO(w)) warps.LoadO(w, row, column, parts[w]);
    }
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) m = fmaxf(m, m_l[w].x);
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      const float rescale = Exp2Minus(m_l[w].x, m);
      l += rescale * m_l[w].y;
      if (!warps.HasO(w)) continue;
#pragma unroll
      for (int i = 0; i < kCount; ++i) o.values[i] += rescale * parts[w].values[i];
    }
    if (!is_split) {
      StoreRow<Shape>(p, plan, work, row, column, m, l, o);
      continue;
    }
    const int64_t to = slot_row + row;
    if (Lane() == 0) workspace.m_l[to] = {m, l};
    if (column < plan.d) *reinterpret_cast<Columns<float, kCount>*>(workspace.o + to * plan.d + column) = o;
  }
}

// Reduces the splits of a tile and stores its rows from `first_row` on, each kWarps-th.
template <typename Shape>
__device__ inline void ReduceSplits(const Params& p, const Plan& plan, const StoredSplit& split_of_tile,
                                    const Workspace& workspace, int first_row) {
  constexpr int kCount = Shape::kDim / kWarpSize, kUnroll = kCount == 8 ? 4 : 8;
  constexpr int kGroups = Shape::kTiles == 1 ? 2 : 1;
  const WorkTile& work = split_of_tile.work;
  const int column = Lane() * kCount, first = split_of_tile.index - work.split * plan.kv_heads;
  const auto slot_of = [&](int split) { return (first + split * plan.kv_heads) % plan.slots; };
#pragma unroll 1
  for (int row = first_row; row < work.rows; row += Shape::kWarps) {
    const auto merged = MergeSplits<kCount, kUnroll, kGroups>(workspace.m_l, workspace.o, Shape::kRows, plan.d,
                                                              work.splits, row, column, slot_of);
    StoreRow<Shape>(p, plan, work, row, column, merged.m, merged.l, merged.o);
  }
}

// Waits until the tile whose split has work tile `index`'s slot is reduced. That tile's work tiles have lower numbers,
// and every CTA takes its work tiles in order, so that none of them waits for this one.
template <typename Shape>
__device__ inline void WaitForSlot(const Params& p, const Plan& plan, const typename Shape::Scheduler& scheduler,
                                   const Workspace& workspace, int index) {
  for (index -= plan.slots; index >= 0; index -= plan.slots) {
    const WorkTile earlier = scheduler.Find(p, plan, index);
    if (earlier.splits == 1) continue;
    if (threadIdx.x == 0) {
      while (ld_acquire_gpu(workspace.Counter(plan, earlier)) <= earlier.splits) __nanosleep(100);
    }
    __syncthreads();
    return;
  }
}

}  // namespace paged_attention::decode
