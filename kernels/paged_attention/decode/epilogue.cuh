// What the decode kernel's CTAs leave for one another in the workspace, and how a row gets its result.
#pragma once

#include "paged_attention/decode/softmax.cuh"

namespace paged_attention::decode {

struct Workspace {
  int* counters;
  int* turn;        // work tiles taken beyond each CTA's own
  float2* weights;  // [slots][rows]: maximum and sum of weights
  float* sums;      // [slots][rows][d]

  __device__ Workspace(const Params& p, const Plan& plan)
      : counters(static_cast<int*>(p.workspace)),
        turn(counters + plan.counters - 1),
        weights(reinterpret_cast<float2*>(counters + plan.counters)),
        sums(reinterpret_cast<float*>(weights + int64_t{plan.slots} * plan.tile_rows)) {}

  __device__ int* Counter(const Plan& plan, const WorkTile& work) const {
    return counters + (int64_t{work.seq} * plan.tiles + work.row / plan.tile_rows) * plan.kv_heads + work.kv_head;
  }
};

// kCount neighbouring columns, in one access.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount <= 16 ? sizeof(T) * kCount : 16) Columns {
  T values[kCount];
};

// Writes a row's columns from `column` on, and its lse.
template <typename Shape, int kCount>
__device__ inline void StoreRow(const Params& p, const Plan& plan, const WorkTile& work, int row, int column, float max,
                                float weight, const Columns<float, kCount>& sums) {
  const Row place = RowOf(plan, work, row);
  const int64_t out_row = int64_t{work.query_row + place.token} * plan.heads + place.head;
  float scale = p.kv_scales == nullptr ? 1.0f : p.kv_scales[plan.kv_heads + work.kv_head];
  if (p.sinks != nullptr) {
    const float sink = p.sinks[place.head] * kLog2E, both = fmaxf(max, sink), share = Weight(max, both);
    weight = weight * share + Weight(sink, both);
    scale *= share;
    max = both;
  }
  if (p.lse != nullptr && column == 0) p.lse[out_row] = (max + log2f(weight)) * kLn2;
  if (column >= plan.d) return;
  const float factor = scale / weight;
  const auto store = [&](auto type) {
    using T = decltype(type);
    Columns<T, kCount> result;
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.values[i] = static_cast<T>(sums.values[i] * factor);
    *reinterpret_cast<Columns<T, kCount>*>(static_cast<T*>(p.out) + out_row * plan.d + column) = result;
  };
  if (Shape::kIsFloat8 && p.dtype == Dtype::kBFloat16) {
    store(__nv_bfloat16());
  } else {
    store(typename Shape::T());
  }
}

// Merges the splits of a tile, in their order, and writes its rows. Few instructions, because no CTA
// has run them before and all of them come from memory.
template <typename Shape>
__device__ inline void ReduceSplits(const Params& p, const Plan& plan, const WorkTile& work, const Workspace& workspace,
                                    int index) {
  constexpr int kCount = Shape::kDim / kWarpSize, kUnroll = 4;
  static_assert(kWarpSize % kUnroll == 0);
  using Part = std::conditional_t<kCount == 2, float2, float4>;
  constexpr int kPartColumns = sizeof(Part) / sizeof(float);
  const int lane = Lane(), column = lane * kCount, first = index - work.split * plan.kv_heads;
#pragma unroll 1
  for (int row = threadIdx.x / kWarpSize; row < work.rows; row += Shape::kWarps) {
    float max = -INFINITY, weight = 0;
    Columns<float, kCount> sums = {};
    const float* sources = workspace.sums + row * plan.d + column;
#pragma unroll 1
    for (int begin = 0; begin < work.splits; begin += kWarpSize) {
      // A split's place, maximum and sum of weights in the lane of its number.
      const int slot = (first + (begin + lane) * plan.kv_heads) % plan.slots;
      const int64_t from = int64_t{slot} * Shape::kRows + row;
      const bool is_chunk = begin + lane < work.splits;
      const float2 mine = is_chunk ? __ldcg(workspace.weights + from) : float2{-INFINITY, 0};
      float largest = fmaxf(max, mine.x);
#pragma unroll
      for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
      }
      const float share = Weight(mine.x, largest), scale = Weight(max, largest);
      weight = weight * scale + share * mine.y;
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums.values[j] *= scale;
      max = largest;
#pragma unroll 1
      for (int i = 0; i < min(kWarpSize, work.splits - begin); i += kUnroll) {
        Columns<float, kCount> parts[kUnroll] = {};
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const float* source = sources + __shfl_sync(kAllLanes, slot, i + u) * (Shape::kRows * plan.d);
          if (begin + i + u >= work.splits || column >= plan.d) continue;
#pragma unroll
          for (int j = 0; j < kCount; j += kPartColumns) {
            reinterpret_cast<Part&>(parts[u].values[j]) = __ldcg(reinterpret_cast<const Part*>(source + j));
          }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const float share_of_chunk = __shfl_sync(kAllLanes, share, i + u);
#pragma unroll
          for (int j = 0; j < kCount; ++j) sums.values[j] += share_of_chunk * parts[u].values[j];
        }
      }
    }
#pragma unroll
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) weight += __shfl_xor_sync(kAllLanes, weight, lanes);
    StoreRow<Shape>(p, plan, work, row, column, max, weight, sums);
  }
}

// Waits until the tile whose split has work tile `index`'s slot is merged. That tile's work tiles have lower numbers,
// and every block takes its work tiles in order, so that none of them waits for this one.
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
