// Prefill for sm_90a: wgmma and TMA; head_dim a multiple of 64, block_size a multiple of 8. A persistent CTA of three
// warpgroups takes work tiles of 128 query rows of one kv head, with all their keys or a split of them, and goes
// through the KV tiles from the last to the first. One warpgroup loads (the producer). The two others (the consumers)
// compute 64 rows each and take turns, so that the tensor cores have one's MMAs during the other one's softmax; each
// also overlaps its softmax with its own P V MMAs. For head_dim 64 there are three consumers, 192 rows, and each waits
// for its own MMAs. sm90_pipeline.cuh draws the barriers. After Shah et al., "FlashAttention-3: Fast and Accurate
// Attention with Asynchrony and Low-precision", 2024, arXiv:2407.08608.
#pragma once

#include "paged_attention/prefill/sm90_mainloop_convert.cuh"
#include "paged_attention/prefill/sm90_mainloop_load.cuh"
#include "paged_attention/prefill/sm90_mainloop_mma.cuh"
#include "pyxla/device/tensor_map.h"

namespace paged_attention {
namespace prefill {
namespace sm90 {

// Other GPUs' code for it is empty: it uses no shared memory, by which the host knows.
template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    PrefillKernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ Params p,
                  const __grid_constant__ Plan plan, const __grid_constant__ Workspace workspace, int run_keys) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t dynamic[];
  constexpr int kConsumerThreads = S::kConsumerThreads, kFixupThreads = S::kFixupThreads;
  __shared__ SharedStorage<S> shared;
  const uint32_t base = (shared_address(dynamic) + 1023) / 1024 * 1024;
  const uint32_t keys = base + S::kQueryStages * S::kQueryBytes, values = keys + kStages * S::kTileBytes;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(shared_address(&shared.k_full[i]), S::kIsFloat8 ? kFixupThreads : 1);
      mbarrier_init(shared_address(&shared.k_empty[i]), kConsumerThreads);
      mbarrier_init(shared_address(&shared.v_full[i]), S::kIsFloat8 ? kFixupThreads : 1);
      mbarrier_init(shared_address(&shared.v_empty[i]), kConsumerThreads + (S::kIsFloat8 ? 0 : kFixupThreads));
      if (S::kIsFloat8) {
        mbarrier_init(shared_address(&shared.bytes_full[i]), 1);
        mbarrier_init(shared_address(&shared.bytes_empty[i]), kFixupThreads);
      } else {
        mbarrier_init(shared_address(&shared.v_fixed[i]), kFixupThreads);
      }
      mbarrier_init(shared_address(&shared.work_full[i]), 1);
      mbarrier_init(shared_address(&shared.work_empty[i]), kConsumerThreads + kWarpSize + kFixupThreads);
      mbarrier_init(shared_address(&shared.q_full[i]), kWarpSize);
      mbarrier_init(shared_address(&shared.q_empty[i]), kConsumerThreads);
    }
    mbarrier_init(shared_address(&shared.loads_begun), 1);
    fence_proxy_async_shared();
  }
  const int count = shared.tiles.Count(p, plan);
  if (threadIdx.x == 0) {
    shared.count = count, shared.share_count = 0;
    shared.slot_rows = shared.tiles.MostRows();
    // Of a CTA with all its shares there is at least one less than there are CTAs: it takes the other work.
    shared.ring = min(workspace.rows / shared.slot_rows, kMostShares * static_cast<int>(gridDim.x) - 1) / plan.kv_heads;
  }
  __syncthreads();

  // In this order of the branches the compiler spills least.
  if (threadIdx.x < kConsumerThreads) {
    warpgroup_reg_alloc<S::kConsumerRegisters>();
    RunConsumer<S>(p, plan, workspace, shared, base, keys, values);
    SplitStore<S>(p, plan, workspace, shared).MergeShares();
  } else if (S::kHasConverter && threadIdx.x >= kConsumerThreads + kWarpgroupSize) {
    if constexpr (S::kHasConverter) {
      warpgroup_reg_dealloc<S::kConverterRegisters>();
      RunConverter<S>(p, shared, keys, values);
    }
  } else {
    warpgroup_reg_dealloc<S::kProducerRegisters>();
    if (threadIdx.x < kConsumerThreads + kWarpSize) {
      RunScheduler<S>(p, plan, workspace, shared, base);
    } else if (threadIdx.x < kConsumerThreads + 2 * kWarpSize) {
      RunProducer<S>(p, map, shared, keys, values, run_keys);
    } else if constexpr (!S::kIsFloat8) {
      RunFixup<S>(p, shared, values);
    } else if constexpr (!S::kHasConverter) {
      RunConverter<S>(p, shared, keys, values);
    }
  }
#endif
}

// The cache as [kv_heads][rows / 8][head_dim / 64][8][64], rows = 2 * blocks * block_size; a box is a run of one
// head. A float8 cache's bytes are not permuted, and a row is together.
template <typename S>
cudaError_t MakeMap(const Params& p, int run_keys, CUtensorMap* map) {
  constexpr int kColumns = S::kIsFloat8 ? S::kHeadDim : 64, kParts = S::kHeadDim / kColumns;
  const int64_t row = p.kv_heads * S::kHeadDim, rows = 2 * p.blocks * p.block_size;
  const auto type = S::kIsFloat8                             ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                    : std::is_same_v<typename S::Kv, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return pyxla::MakeTensorMap(p.kv_cache, type,
                              {{kColumns, 1, kColumns},
                               {8, row, 8},
                               {kParts, kColumns, kParts},
                               {rows / 8, 8 * row, run_keys / 8},
                               {p.kv_heads, S::kHeadDim, 1}},
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, map);
}

// Launches the kernel, if it is there for this GPU and takes these arguments.
template <typename S>
cudaError_t Launch(cudaStream_t stream, const Params& p, bool* launched) {
  const auto kernel = PrefillKernel<S>;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  *launched = error == cudaSuccess && attributes.sharedSizeBytes > 0 && p.block_size % 8 == 0 && p.blocks > 0;
  if (!*launched) return error;

  int run_keys = 8;
  while (S::kKeys % (2 * run_keys) == 0 && p.block_size % (2 * run_keys) == 0) run_keys *= 2;
  CUtensorMap map;
  error = MakeMap<S>(p, run_keys, &map);
  if (error != cudaSuccess) return error;
  int device, sms;
  error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (error != cudaSuccess) return error;
  const int64_t most = MaxTiles(p, S::kRows) * p.kv_heads * MaxSplits(p);
  if (most == 0) return cudaSuccess;
  // CTAs that share merges wait for one another, and a cooperative launch has all of them resident.
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = MaxSplits(p) > 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(most < sms ? most : sms);
  config.blockDim = S::kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, map, p, Plan(p, S::kThreads), Workspace(p), run_keys);
}

}  // namespace sm90
}  // namespace prefill
}  // namespace paged_attention
