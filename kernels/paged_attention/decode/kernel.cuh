// The decode kernel, and which of its shapes a call takes. Each dtype of the cache is compiled in a file of its own.
#pragma once

#include <cooperative_groups.h>

#include <utility>

#include "paged_attention/decode/epilogue.cuh"

namespace paged_attention::decode {

// The rows behind the batch's become zero, their lse minus infinity; all rows NaN if the batch is wrong.
__device__ inline void FillRows(const Params& p, int batch_rows, bool is_wrong) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x, thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t begin = is_wrong ? 0 : batch_rows, row = p.heads * p.head_dim;
  const uint16_t value = is_wrong ? 0xffff : 0;  // NaN or zero in bfloat16 and float16
  for (int64_t i = begin * row + thread; i < p.tokens * row; i += threads) static_cast<uint16_t*>(p.out)[i] = value;
  if (p.lse == nullptr) return;
  const float lse = is_wrong ? NAN : -INFINITY;
  for (int64_t i = begin * p.heads + thread; i < p.tokens * p.heads; i += threads) p.lse[i] = lse;
}

// Blocks stay, and take items as Turns says.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    DecodeKernel(const __grid_constant__ Params p, const __grid_constant__ Plan plan) {
  constexpr int kCount = Shape::kDim / kWarpSize;
  extern __shared__ __align__(128) char shared[];
  __shared__ typename Shape::BlockItems items;
  __shared__ Turns turns;
  __shared__ Item warp_item[Shape::kWarps], item_to_merge;
  __shared__ float warp_max[Shape::kWarps][Shape::kRows], warp_weight[Shape::kWarps][Shape::kRows];
  __shared__ const float* warp_sums[Shape::kWarps];
  __shared__ bool is_last;
  static_assert(sizeof(items) + sizeof(turns) + sizeof(warp_item) + sizeof(item_to_merge) + sizeof(warp_max) +
                        sizeof(warp_weight) + sizeof(warp_sums) + sizeof(is_last) <=
                    3 * 1024,
                "what Shape leaves of a block's shared memory on sm_86");
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;

  // The workspace holds anything. The counters are zero for all blocks once all have arrived at the grid's barrier.
  const Workspace workspace(p, plan);
  for (int64_t i = int64_t{blockIdx.x} * Shape::kThreads + threadIdx.x; i < plan.counters;
       i += int64_t{gridDim.x} * Shape::kThreads) {
    workspace.counters[i] = 0;
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < Turns::kOwn; ++i) turns.Set(i, blockIdx.x + i * gridDim.x);
  }
  const int count = items.Count(p, plan);
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  auto arrival = grid.barrier_arrive();
  bool has_waited = false;
  FillRows(p, items.Rows(), count < 0);

  char* ring = shared + warp * Shape::kRingBytes;
  Loader<Shape> loader(p, plan, items, turns, count, shared_address(ring));
  int stage = 0, loaded = 0;  // stages that hold slabs, or soon will

  // The block that completes a tile merges its chunks. It asks whether it has while it works on the next item; at once
  // where others may wait for the slots.
  int to_merge = -1;
  const bool is_waited_for = count > plan.slots;
  for (int number = 0, index = blockIdx.x;;) {
    const bool is_item = index < count && (to_merge < 0 || !is_waited_for);
    if (is_item) {
      const bool takes_turn = threadIdx.x == 0 && number + 2 >= Turns::kOwn;
      const int turn = takes_turn ? Turns::kOwn * gridDim.x + atomicAdd(workspace.turn, 1) : 0;
      Query<Shape> q;
      State<Shape> state = {};
      int last = -1;  // the stage that held the warp's last slab
      Bounds bounds;
      int key = 0, rows = 0;
      bool is_split = false;

      // The warp's slabs, once round for each, and once before: copies are under way when the query is asked for. The
      // last slab's stage is not filled again before the warps are merged.
      bool is_first = true;
#pragma unroll 1
      do {
        // One stage is free here, or, at first, as many as there are.
#pragma unroll 1
        while (loaded < Shape::kStages) {
          loaded += loader.Step(number);
          if (!is_first || !loader.HasSlab()) break;
        }
        if (is_first) {
          is_first = false;
          const Item item = items.Find(p, plan, index);
          if (lane == 0) warp_item[warp] = item;
          bounds = BoundsOf(plan, item);
          key = item.begin + warp * Shape::kKeys;
          rows = item.rows;
          is_split = item.chunks > 1;
          LoadQuery<Shape>(p, plan, item, q);
#pragma unroll
          for (int i = 0; i < Shape::kRows / 4; ++i) {
            state.max[i / 2][i % 2] = -INFINITY;
            // No weight, no result: where a length is wrong.
            if (!item.is_valid) state.weight[i / 2][i % 2] = NAN;
          }
          __syncwarp();
          continue;
        }
        // Behind the slab's copies there is the next one's group, or an empty one.
        static_assert(Shape::kStages == 2);
        cp_async_wait_group<1>();
        __syncwarp();
        AddStage<Shape>(p, plan, warp_item[warp], bounds, q, shared_address(ring) + stage * Shape::kStageBytes, key,
                        state);
        __syncwarp();
        last = stage;
        stage = stage == Shape::kStages - 1 ? 0 : stage + 1;
        --loaded;
        key += Shape::kWarps * Shape::kKeys;
      } while (key < bounds.end);
      float* sums = last < 0 ? nullptr : reinterpret_cast<float*>(ring + last * Shape::kStageBytes);
      StoreState<Shape>(state, rows, sums != nullptr, warp_max[warp], warp_weight[warp], sums);
      if (lane == 0) warp_sums[warp] = sums;
      if (takes_turn) turns.Set(number + 2, turn);
      if (!has_waited) {
        grid.barrier_wait(std::move(arrival));
        has_waited = true;
      }
      if (is_split && index >= plan.slots) WaitForSlot<Shape>(p, plan, items, workspace, index);
    }
    __syncthreads();

    if (to_merge >= 0) {
      if (is_last) {
        __threadfence();
        MergeChunks<Shape>(p, plan, item_to_merge, workspace, to_merge);
      }
      if (is_last && is_waited_for) {
        __syncthreads();
        if (threadIdx.x == 0) __threadfence(), atomicAdd(workspace.Counter(plan, item_to_merge), 1);
      }
      to_merge = -1;
    }
    if (!is_item) {
      if (index >= count) break;
      continue;
    }

    // Merged over the warps: the result, or the chunk's part of it.
    const Item& item = warp_item[warp];
    const bool is_split = item.chunks > 1;
    for (int row = warp; row < item.rows; row += Shape::kWarps) {
      const int column = lane * kCount;
      float max = -INFINITY, weight = 0;
      Columns<float, kCount> merged = {};
#pragma unroll
      for (int w = 0; w < Shape::kWarps; ++w) max = fmaxf(max, warp_max[w][row]);
#pragma unroll
      for (int w = 0; w < Shape::kWarps; ++w) {
        const float share = Weight(warp_max[w][row], max);
        weight += share * warp_weight[w][row];
        if (warp_sums[w] == nullptr) continue;
        const auto part =
            *reinterpret_cast<const Columns<float, kCount>*>(warp_sums[w] + Shape::SumOffset(row, column));
#pragma unroll
        for (int i = 0; i < kCount; ++i) merged.values[i] += share * part.values[i];
      }
      if (!is_split) {
        Finish<Shape>(p, plan, item, row, column, max, weight, merged);
        continue;
      }
      const int64_t to = int64_t{index % plan.slots} * Shape::kRows + row;
      if (lane == 0) workspace.weights[to] = {max, weight};
      if (column < plan.d) *reinterpret_cast<Columns<float, kCount>*>(workspace.sums + to * plan.d + column) = merged;
    }
    __syncthreads();
    if (is_split) {
      to_merge = index;
      if (threadIdx.x == 0) {
        item_to_merge = item;
        __threadfence();
        is_last = atomicAdd(workspace.Counter(plan, item), 1) == item.chunks - 1;
      }
    }
    index = turns.Index(++number);
  }
  cp_async_wait_group<0>();
}

template <typename Shape>
cudaError_t Launch(cudaStream_t stream, const Params& p, bool all_rows) {
  const auto kernel = DecodeKernel<Shape>;
  int device = 0, processors = 0, blocks = 0;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  if ((error = cudaGetDevice(&device)) != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, Shape::kThreads, Shape::kSharedBytes);
  if (error != cudaSuccess) return error;

  // Cooperative: all blocks are there at once, which the grid's barrier and the wait for a slot need.
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(processors * blocks);
  config.blockDim = Shape::kThreads;
  config.dynamicSmemBytes = Shape::kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, Plan(p, all_rows, Shape::kRows, Shape::BlockItems::kEntries));
}

// Tiles of sixteen rows where a token has more than eight, or the shapes are those of a few tokens a sequence with more
// than eight rows. A row's result is the same in either.
template <typename T, typename Kv>
cudaError_t LaunchForDim(cudaStream_t stream, const Params& p, bool all_rows) {
  const int64_t group = p.heads / p.kv_heads;
  const bool is_wide = group > 8 || (p.tokens * group > p.seqs * 8 && p.tokens <= p.seqs * DecodeTokens(p));
  if (p.head_dim > 128) return Launch<Shape<T, Kv, 256, 1>>(stream, p, all_rows);
  if (p.head_dim > 64) {
    return is_wide ? Launch<Shape<T, Kv, 128, 2>>(stream, p, all_rows)
                   : Launch<Shape<T, Kv, 128, 1>>(stream, p, all_rows);
  }
  return is_wide ? Launch<Shape<T, Kv, 64, 2>>(stream, p, all_rows) : Launch<Shape<T, Kv, 64, 1>>(stream, p, all_rows);
}

}  // namespace paged_attention::decode
