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
  float2* few_m_l;  // [kFewTiles][shares][rows]
  float* few_o;     // [kFewTiles][shares][rows][d]

  __device__ Workspace(const Params& p, const Plan& plan)
      : counters(static_cast<int*>(p.workspace) + plan.prefill_counters),
        next_work(static_cast<int*>(p.workspace) + plan.counters - 1),
        m_l(reinterpret_cast<float2*>(next_work + 1)),
        o(reinterpret_cast<float*>(m_l + int64_t{plan.slots} * plan.tile_rows)),
        few_counters(next_work - kFewTiles),
        few_m_l(reinterpret_cast<float2*>(o + int64_t{plan.slots} * plan.tile_rows * plan.d)),
        few_o(reinterpret_cast<float*>(few_m_l + kFewTiles * kMostShares * plan.tile_rows)) {}

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

// The (m, l, O) of a work tile's shares in shared memory.
template <typename Shape>
struct SharedShares {
  const char* shared;
  const float (&m)[Shape::kShares][Shape::kRows], (&l)[Shape::kShares][Shape::kRows];
  const int (&stages)[Shape::kShares];  // that have the O of the shares' warps, or -1: there was no KV tile

  __device__ float2 MaximumAndSum(int share, int row) const { return {m[share][row], l[share][row]}; }
  __device__ bool HasO(int share) const { return stages[share] >= 0; }
  template <int kCount>
  __device__ void LoadO(int share, int row, int column, Columns<float, kCount>& o) const {
    const char* from = shared;
    if constexpr (Shape::kGroups == 1) {
      from += share * Shape::kRingBytes + stages[share] * Shape::kStageBytes;
    } else {
      from += Shape::OBegin(share % Shape::kRings, row / Shape::kWarpRows);
    }
    o = *reinterpret_cast<const Columns<float, kCount>*>(from + Shape::OOffset(row % Shape::kWarpRows, column) * 4);
  }
};

// A row's (m, l, O): into the result, or into the split's slot of the workspace.
template <typename Shape, int kCount>
__device__ inline void StoreMerged(const Params& p, const Plan& plan, const WorkTile& work, int index,
                                   const Workspace& workspace, int row, int column, float m, float l,
                                   const Columns<float, kCount>& o) {
  if (work.splits == 1) return StoreRow<Shape>(p, plan, work, row, column, m, l, o);
  const int64_t to = int64_t{index % plan.slots} * Shape::kRows + row;
  if (Lane() == 0) workspace.m_l[to] = {m, l};
  if (column < plan.d) *reinterpret_cast<Columns<float, kCount>*>(workspace.o + to * plan.d + column) = o;
}

// Merges the (m, l, O) of a work tile's shares, in their order.
template <typename Shape, typename Shares>
__device__ inline void MergeShares(const Params& p, const Plan& plan, const WorkTile& work, int index,
                                   const Workspace& workspace, const Shares& shares) {
  constexpr int kCount = Shape::kDim / kWarpSize;
  for (int row = Warp(); row < work.rows; row += Shape::kWarps) {
    const int column = Lane() * kCount;
    // All loads, before the first is waited for; none of a stage that may be refilled meanwhile.
    float2 m_l[Shape::kShares];
    Columns<float, kCount> parts[Shape::kShares] = {};
    float m = -INFINITY, l = 0;
    Columns<float, kCount> o = {};
#pragma unroll
    for (int w = 0; w < Shape::kShares; ++w) {
      m_l[w] = shares.MaximumAndSum(w, row);
      if (shares.HasO(w)) shares.LoadO(w, row, column, parts[w]);
    }
#pragma unroll
    for (int w = 0; w < Shape::kShares; ++w) m = fmaxf(m, m_l[w].x);
#pragma unroll
    for (int w = 0; w < Shape::kShares; ++w) {
      const float rescale = Exp2Minus(m_l[w].x, m);
      l += rescale * m_l[w].y;
      if (!shares.HasO(w)) continue;
#pragma unroll
      for (int i = 0; i < kCount; ++i) o.values[i] += rescale * parts[w].values[i];
    }
    StoreMerged<Shape>(p, plan, work, index, workspace, row, column, m, l, o);
  }
}

// The same where the O of one pass at a time is in shared memory: store_o() replaces the first pass's by the second's.
template <typename Shape, typename Shares, typename StoreO>
__device__ inline void MergePasses(const Params& p, const Plan& plan, const WorkTile& work, int index,
                                   const Workspace& workspace, const Shares& shares, StoreO store_o) {
  constexpr int kCount = Shape::kDim / kWarpSize, kRowsOfWarp = (Shape::kRows - 1) / Shape::kWarps + 1;
  const int column = Lane() * kCount;
  Columns<float, kCount> sums[kRowsOfWarp] = {};
#pragma unroll
  for (int pass = 0; pass < Shape::kPasses; ++pass) {
    if (pass > 0) {
      __syncthreads();
      store_o();
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      const int row = Warp() + i * Shape::kWarps;
      if (row >= work.rows) break;
      float m = -INFINITY, l = 0;
#pragma unroll
      for (int w = 0; w < Shape::kShares; ++w) m = fmaxf(m, shares.MaximumAndSum(w, row).x);
#pragma unroll
      for (int w = 0; w < Shape::kShares; ++w) {
        const float2 m_l = shares.MaximumAndSum(w, row);
        const float rescale = Exp2Minus(m_l.x, m);
        l += rescale * m_l.y;
        if (w / Shape::kRings != pass || !shares.HasO(w)) continue;
        Columns<float, kCount> part;
        shares.LoadO(w, row, column, part);
#pragma unroll
        for (int j = 0; j < kCount; ++j) sums[i].values[j] += rescale * part.values[j];
      }
      if (pass == Shape::kPasses - 1) StoreMerged<Shape>(p, plan, work, index, workspace, row, column, m, l, sums[i]);
    }
  }
}

// Reduces the splits of a tile and stores its rows from `first_row` on, each kWarps-th, kRowsAtOnce at a time.
template <typename Shape, int kUnroll, int kGroups, int kRowsAtOnce>
__device__ inline void ReduceRows(const Params& p, const Plan& plan, const StoredSplit& split_of_tile,
                                  const Workspace& workspace, int first_row) {
  constexpr int kCount = Shape::kDim / kWarpSize;
  const WorkTile& work = split_of_tile.work;
  const int column = Lane() * kCount, first = split_of_tile.index - work.split * plan.kv_heads;
  const auto slot_of = [&](int split) { return (first + split * plan.kv_heads) % plan.slots; };
#pragma unroll 1
  for (int row = first_row; row < work.rows; row += kRowsAtOnce * Shape::kWarps) {
    int rows[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) rows[r] = min(row + r * Shape::kWarps, work.rows - 1);
    MergedRow<kCount> merged[kRowsAtOnce];
    MergeSplits<kCount, kUnroll, kGroups>(workspace.m_l, workspace.o, Shape::kRows, plan.d, work.splits, rows, column,
                                          slot_of, merged);
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (row + r * Shape::kWarps >= work.rows) break;
      StoreRow<Shape>(p, plan, work, rows[r], column, merged[r].m, merged[r].l, merged[r].o);
    }
  }
}

// At most kUnroll splits have a common maximum, so with half of them the bits are the same either way.
template <typename Shape>
__device__ inline void ReduceSplits(const Params& p, const Plan& plan, const StoredSplit& split,
                                    const Workspace& workspace, int first_row) {
  constexpr int kUnroll = Shape::kDim == 256 ? 4 : 8, kGroups = Shape::kTiles == 1 ? 2 : 1;
  if (Shape::kGroups > 1 && split.work.splits <= kUnroll / 2) {
    ReduceRows<Shape, kUnroll / 2, 1, 2>(p, plan, split, workspace, first_row);
  } else {
    ReduceRows<Shape, kUnroll, kGroups, 1>(p, plan, split, workspace, first_row);
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
