// A call of few work tiles: several CTAs compute each. With one CTA for each, most SMs would be idle.
//
//   CTA                        slices of the head dimension of a share: what one warp computes in kernel.cuh, KV tiles
//                              w, w + shares, ... of the work tile                                   share_loop.cuh
//   last CTA of a work tile    merges the shares' (m, l, O), as a CTA merges those of its warps      epilogue.cuh
#pragma once

#include "paged_attention/decode/share_loop.cuh"

namespace paged_attention::decode {

// Whether each share of a work tile can have a CTA.
template <typename Shape>
__device__ inline bool AreFew(int work_tiles) {
  return 0 < work_tiles && work_tiles <= kFewTiles && work_tiles * Shape::kShares <= static_cast<int>(gridDim.x);
}

// The CTAs of a share, among which its slices are divided.
template <typename Shape>
__device__ inline int CtasOfShare(int work_tiles) {
  const int most = static_cast<int>(gridDim.x) / (work_tiles * Shape::kShares);
  int ctas = 1;
  while (ctas < Slice<Shape>::kSlices && 2 * ctas <= most) ctas *= 2;
  return ctas;
}

// The (m, l, O) of a work tile's shares in the workspace.
template <typename Shape>
struct StoredShares {
  const Plan& plan;
  const WorkTile& work;
  const float2* m_l;  // [warps][rows]
  const float* o;     // [warps][rows][d]

  __device__ float2 MaximumAndSum(int warp, int row) const { return __ldcg(m_l + warp * Shape::kRows + row); }
  __device__ bool HasO(int warp) const { return work.begin + warp * Shape::kKeys < work.keys.end; }
  template <int kCount>
  __device__ void LoadO(int warp, int row, int column, Columns<float, kCount>& to) const {
    using Part = std::conditional_t<kCount == 2, float2, float4>;
    const float* from = o + (warp * Shape::kRows + row) * plan.d + (column < plan.d ? column : 0);
#pragma unroll
    for (int i = 0; i < kCount; i += sizeof(Part) / sizeof(float)) {
      reinterpret_cast<Part&>(to.values[i]) = __ldcg(reinterpret_cast<const Part*>(from + i));
    }
  }
};

// For all threads of all CTAs. Returns whether this CTA has merged a split, which is now to be reduced; it is the CTA's
// first work tile. The counters are zero when wait_for_counters has returned.
template <typename Shape, typename Wait>
__device__ inline bool ComputeShare(const Params& p, const Plan& plan, const typename Shape::Scheduler& scheduler,
                                    WorkQueue& queue, const Workspace& workspace, char* shared, Wait wait_for_counters,
                                    WorkTile& stored_work) {
  const int count = scheduler.Count(), ctas = CtasOfShare<Shape>(count), slices = Slice<Shape>::kSlices / ctas;
  const int index = blockIdx.x % count, number = blockIdx.x / count;  // of the work tile's CTAs
  if (number >= Shape::kShares * ctas) return false;
  const WorkTile work = scheduler.Find(p, plan, index);
  const ShareLoop<Shape> loop(p, plan, work, number % Shape::kShares, number / Shape::kShares * slices, slices, shared);
  SoftmaxState<Slice<Shape>> state = {};
#pragma unroll
  for (int i = 0; i < Shape::kWarpRows / 4; ++i) {
    state.m[i / 2][i % 2] = -INFINITY;
    // A wrong length makes NaN of the row.
    if (!work.is_valid) state.l[i / 2][i % 2] = NAN;
  }
  loop.Run(state);

  const int64_t row = int64_t{index} * Shape::kShares * Shape::kRows;
  float2* const m_l = workspace.few_m_l + row;
  float* const o = workspace.few_o + row * plan.d;
  loop.Store(state, m_l, o);
  wait_for_counters();
  __syncthreads();
  bool is_last = false;
  if (threadIdx.x == 0) {
    is_last = atom_add_release_gpu(workspace.few_counters + index, 1) == Shape::kShares * ctas - 1;
    __threadfence();
    queue.Set(0, index);
  }
  if (!__syncthreads_or(is_last)) return false;
  MergeShares<Shape>(p, plan, work, index, workspace, StoredShares<Shape>{plan, work, m_l, o});
  if (Lane() == 0) stored_work = work;
  __syncwarp();
  return work.splits > 1;
}

}  // namespace paged_attention::decode
