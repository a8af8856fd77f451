// The decode kernel (split keys, FlashDecoding), and which of its shapes a call takes. Each dtype of the cache is
// compiled in a file of its own.
//
// Persistent CTAs, one or two per SM, launched cooperatively. All warps (3 or 6) are alike: each is the producer and
// the consumer of its own ring, and no warp waits for another one within a work tile.
//
//   work tile          (tile of 8, 16 or 32 query rows, kv head, split of the keys)  scheduler.cuh
//   warp w             share w of the split: KV tiles w, w + shares, ...
//     load             cp.async, a commit group per KV tile, ring of kStages = 2     mainloop_load.cuh
//     S = K Q^T        mma_m16n8k16 (rows are the narrow side)                       mainloop_mma.cuh
//     P, m, l          running softmax, rescaled only for a much larger maximum      softmax.cuh
//     O += V^T P       mma_m16n8k16
//   CTA                (m, l, O) of the shares, merged in shared memory -> result, or the split's slot in the workspace
//   last CTA of a tile reduces its splits in their order, after its last work tile   epilogue.cuh
//
// A tile of 32 rows has two groups of them, and two warps, one of each group, have a ring together: one copies the
// keys, the other one the values. They go through one share, and in a second pass through another one.
//
// If there are few work tiles, several CTAs compute each: few_tiles.cuh. They join the loop only to reduce splits. The
// first 64 KB of a kernel are fast to fetch, so that code comes before the loop, and only kernels of calls that may
// have few work tiles contain it.
//
//   synchronization                    orders
//   cp_async_wait_group<1>             a KV tile's copies before its MMAs; the next KV tile stays in flight
//   __syncwarp                         a stage's last read before the copies that refill it
//   named 1, 2, 3                      the same for the two warps of a ring, and both warps' copies before their MMAs
//   __syncthreads                      the shares' (m, l, O) before their merge, and the merge before the next ones
//   barrier of the grid, once          zeroed counters before the first arrival at one
//   counter per tile                   the splits' slots before their reduction, which is before a slot's next use
//   counter per work tile, if few      the (m, l, O) of its CTAs before their merge
#pragma once

#include <cooperative_groups.h>

#include <utility>

#include "paged_attention/decode/few_tiles.cuh"

namespace paged_attention::decode {

// Padding rows, those after the batch's last row, become zero and their lse minus infinity. If the batch is wrong, all
// rows become NaN.
__device__ inline void FillRows(const Params& p, int batch_rows, bool is_wrong) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x, thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t begin = is_wrong ? 0 : batch_rows, row = p.heads * p.head_dim;
  const uint16_t value = is_wrong ? 0xffff : 0;  // NaN or zero in bfloat16 and float16
  for (int64_t i = begin * row + thread; i < p.tokens * row; i += threads) static_cast<uint16_t*>(p.out)[i] = value;
  if (p.lse == nullptr) return;
  const float lse = is_wrong ? NAN : -INFINITY;
  for (int64_t i = begin * p.heads + thread; i < p.tokens * p.heads; i += threads) p.lse[i] = lse;
}

// The counters are zero for all CTAs once all have arrived at the grid's barrier.
template <typename Shape>
__device__ inline void ZeroCounters(const Params& p, const Plan& plan) {
  for (int64_t i = int64_t{blockIdx.x} * Shape::kThreads + threadIdx.x; i < plan.counters;
       i += int64_t{gridDim.x} * Shape::kThreads) {
    static_cast<int*>(p.workspace)[i] = 0;
  }
}

// After the reduction of a tile: lets WaitForSlot return, by a counter that exceeds the splits.
__device__ inline void ReleaseSlots(const Plan& plan, const WorkTile& work, const Workspace& workspace) {
  __syncthreads();
  if (threadIdx.x == 0) __threadfence(), atomicAdd(workspace.Counter(plan, work), 1);
}

template <typename Shape, bool kMayBeFew>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtasPerSm)
    DecodeKernel(const __grid_constant__ Params p, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(128) char shared[];
  __shared__ typename Shape::Scheduler scheduler;
  __shared__ WorkQueue queue;
  __shared__ WorkTile warp_works[Shape::kWarps][KvLoader<Shape>::kWorks];
  __shared__ float share_m[Shape::kShares][Shape::kRows], share_l[Shape::kShares][Shape::kRows];
  __shared__ int share_o[Shape::kShares];  // the stage that has the share's O, or -1: it had no KV tile
  __shared__ Reductions reductions;
  static_assert(sizeof(scheduler) + sizeof(queue) + sizeof(warp_works) + sizeof(share_m) + sizeof(share_l) +
                        sizeof(share_o) + sizeof(reductions) <=
                    3 * 1024,
                "what Shape leaves of a CTA's shared memory on sm_86");

  // The workspace is uninitialized.
  const Workspace workspace(p, plan);
  ZeroCounters<Shape>(p, plan);
  if (threadIdx.x == 0) {
    reductions.count = 0;
    queue.SetOwn(blockIdx.x, gridDim.x);
  }
  scheduler.CountTiles(p, plan);
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  auto arrival = grid.barrier_arrive();
  FillRows(p, scheduler.Rows(), scheduler.Count() < 0);

  bool is_computed = false;  // the first work tile, a split, which is merged and stored already
  if constexpr (kMayBeFew) {
    if (AreFew<Shape>(scheduler.Count())) {
      const auto wait = [&] { grid.barrier_wait(std::move(arrival)); };
      is_computed = ComputeShare<Shape>(p, plan, scheduler, queue, workspace, shared, wait, warp_works[Warp()][0]);
      if (!is_computed) return;
    }
  }

  const auto ring = [&] { return shared + Shape::Ring() * Shape::kRingBytes; };
  KvLoader<Shape> loader(p, plan, scheduler, queue, shared_address(ring()), warp_works[Warp()]);
  unsigned stage = 0, loaded = 0;  // stages that hold KV tiles, or soon will

  // What is in shared memory is read there again each time, because the loop over KV tiles needs all registers.
  Query<Shape> q;
  for (int step = 0; queue.Index(step / Shape::kPasses) < scheduler.Count(); ++step, is_computed = false) {
    const int number = step / Shape::kPasses, pass = step % Shape::kPasses;
    const WorkTile& work = warp_works[Warp()][number % KvLoader<Shape>::kWorks];
    if (!is_computed) {
      const bool fetches_next = threadIdx.x == 0 && pass == 0 && number + 2 >= WorkQueue::kOwn;
      const int next = fetches_next ? WorkQueue::kOwn * gridDim.x + atomicAdd(workspace.next_work, 1) : 0;
      SoftmaxState<Shape> state = {};
      int key = -1;  // before the first KV tile
      // Tiles of eight rows leave registers for the range.
      KeyRange held;
      const KeyRange& keys = Shape::kTiles == 1 ? held : work.keys;

      // One iteration per KV tile of the warp, and one before them: copies are in flight when the query is loaded. The
      // last KV tile's stage is not refilled before the warps are merged.
#pragma unroll 1
      do {
        // One stage is free here; in the first iteration of the kernel all are. If the ring holds a KV tile, the next
        // one's copies wait until the query is loaded: its block table entries arrive meanwhile.
#pragma unroll 1
        while (loaded < Shape::kStages) {
          loaded += loader.Step(step, (stage + loaded) % Shape::kStages);
          if (key >= 0 || !loader.HasKvTile() || (step > 0 && loaded > 0)) break;
        }
        if (key < 0) {
          __syncwarp();
          held = work.keys;
          key = work.begin + Shape::Share(pass) * Shape::kKeys;
          if (pass == 0) LoadQuery<Shape>(p, plan, work, q);
          if (fetches_next) queue.Set(number + 2, next);
#pragma unroll
          for (int i = 0; i < Shape::kWarpRows / 4; ++i) {
            state.m[i / 2][i % 2] = -INFINITY;
            // A wrong length makes NaN of the row.
            if (!work.is_valid) state.l[i / 2][i % 2] = NAN;
          }
          continue;
        }
        // One commit group follows the KV tile's: the next KV tile's, or an empty one.
        static_assert(Shape::kStages == 2);
        cp_async_wait_group<1>();
        Shape::SyncRing();
        if (Shape::FirstRow() < work.rows) {
          AddKvTile<Shape>(p, plan, work, keys, q, shared_address(ring()) + stage * Shape::kStageBytes, key, state);
        }
        Shape::SyncRing();
        stage = (stage + 1) % Shape::kStages;
        --loaded;
        key += Shape::kShares * Shape::kKeys;
      } while (key < keys.end);
      // The stage before is the last KV tile's, if the warp had one.
      const int share = Shape::Share(pass), last = (stage + Shape::kStages - 1) % Shape::kStages;
      const bool has_o = work.begin + share * Shape::kKeys < work.keys.end;
      const auto store_m_l = [&](int row, float m, float l) { share_m[share][row] = m, share_l[share][row] = l; };
      const auto store_o = [&](int row, int column, float o) {
        char* const to = Shape::kGroups == 1 ? ring() + last * Shape::kStageBytes
                                             : shared + Shape::OBegin(Shape::Ring(), Shape::Group());
        reinterpret_cast<float*>(to)[Shape::OOffset(row - Shape::FirstRow(), column)] = o;
      };
      if (Lane() == 0 && Shape::Group() == 0) share_o[share] = has_o ? last : -1;
      const bool is_last_pass = pass == Shape::kPasses - 1, stores_o = has_o && (Shape::kPasses == 1 || !is_last_pass);
      StoreSoftmaxState<Shape>(state, work.rows, stores_o, store_m_l, store_o);
      if (!is_last_pass) continue;
      if (number == 0) grid.barrier_wait(std::move(arrival));
      const int index = queue.Index(number);
      if (work.splits > 1 && index >= plan.slots) WaitForSlot<Shape>(p, plan, scheduler, workspace, index);
      __syncthreads();
      const SharedShares<Shape> shares{shared, share_m, share_l, share_o};
      if constexpr (Shape::kPasses == 1) {
        MergeShares<Shape>(p, plan, work, index, workspace, shares);
      } else {
        MergePasses<Shape>(p, plan, work, index, workspace, shares, [&] {
          StoreSoftmaxState<Shape>(state, work.rows, has_o, [](int, float, float) {}, store_o);
        });
      }
    }
    const bool is_split = work.splits > 1;

    // The last CTA to store a split of a tile reduces the tile, but after its own work tiles: beside other CTAs' copies
    // a reduction takes three times as long. It does not wait if other CTAs may wait for the slots.
    const bool is_waited_for = scheduler.Count() > plan.slots;
    const bool reduces =
        is_waited_for || queue.Index(number + 1) >= scheduler.Count() || reductions.count == Reductions::kMost - 1;
    __syncthreads();
    if (threadIdx.x == 0 && is_split) reductions.Arrive(plan, workspace, {work, queue.Index(number)});
    if (!reduces) continue;
    __syncthreads();
    // The warps take the rows of all these tiles in turn.
    int first_row = Warp();
#pragma unroll 1
    for (int i = 0; i < reductions.count; ++i) {
      const StoredSplit& split = reductions.splits[i];
      ReduceSplits<Shape>(p, plan, split, workspace, first_row);
      first_row = (first_row + Shape::kWarps * Shape::kRows - split.work.rows) % Shape::kWarps;
      if (is_waited_for) ReleaseSlots(plan, split.work, workspace);
    }
    __syncthreads();
    if (threadIdx.x == 0) reductions.count = 0;
  }
  cp_async_wait_group<0>();
}

template <typename Shape>
cudaError_t Launch(cudaStream_t stream, const Params& p, bool all_rows) {
  auto kernel = DecodeKernel<Shape, false>;
  if constexpr (Shape::kGroups == 1) {
    if (MayBeFew(p)) kernel = DecodeKernel<Shape, true>;
  }
  int device = 0, sms = 0, ctas_per_sm = 0;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  if ((error = cudaGetDevice(&device)) != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas_per_sm, kernel, Shape::kThreads, Shape::kSharedBytes);
  if (error != cudaSuccess) return error;

  // A cooperative launch has all CTAs resident, which the barrier of the grid and the wait for a slot need.
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(sms * ctas_per_sm);
  config.blockDim = Shape::kThreads;
  config.dynamicSmemBytes = Shape::kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, Plan(p, all_rows, Shape::kRows, Shape::Scheduler::kEntries));
}

// Tiles of eight, sixteen or thirty-two rows: of more than eight where a token has more, or where the shapes are those
// of a few tokens a sequence with more. A row's result is the same in each.
template <typename T, typename Kv>
cudaError_t LaunchForDim(cudaStream_t stream, const Params& p, bool all_rows) {
  const int64_t group = p.heads / p.kv_heads, most_tokens = p.seqs * DecodeTokens(p);
  const auto has_more = [&](int64_t rows) {
    return group > rows || (p.tokens * group > p.seqs * rows && p.tokens <= most_tokens);
  };
  if (p.head_dim > 128) return Launch<Shape<T, Kv, 256, 1>>(stream, p, all_rows);
  if constexpr (std::is_same_v<T, Kv>) {
    if (has_more(16) && HasManyHeads(p)) {
      return p.head_dim > 64 ? Launch<Shape<T, Kv, 128, 2, 2>>(stream, p, all_rows)
                             : Launch<Shape<T, Kv, 64, 2, 2>>(stream, p, all_rows);
    }
  }
  if (p.head_dim > 64) {
    return has_more(8) ? Launch<Shape<T, Kv, 128, 2>>(stream, p, all_rows)
                       : Launch<Shape<T, Kv, 128, 1>>(stream, p, all_rows);
  }
  return has_more(8) ? Launch<Shape<T, Kv, 64, 2>>(stream, p, all_rows)
                     : Launch<Shape<T, Kv, 64, 1>>(stream, p, all_rows);
}

}  // namespace paged_attention::decode
