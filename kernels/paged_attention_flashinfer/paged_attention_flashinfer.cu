// FlashInfer's kernel for ragged batches over a paged cache (attention/prefill.cuh, "fa2"), and the plan it runs by.
// A block of its grid computes one slot of the plan for one kv head; see paged_attention_flashinfer_plan.h.
//
// Limits, which paged_attention_flashinfer_ffi.cc checks: query, cache and out bfloat16 or float16, head_dim 64 or 128,
// no alibi_slopes, sinks, kv_scales or lse; fewer than 2^31 elements of query, and of positions in block_tables. Keys
// and values of a context are multiplied also by the zero weight of the tokens that do not see them, and logits beyond
// 3e4 are not told from masked ones. Source: Ye et al., "FlashInfer: Efficient and Customizable Attention Engine for
// LLM Inference Serving", 2025, arXiv:2501.01005.
#include <algorithm>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>

#include "paged_attention/paged_attention.h"
#include "paged_attention_flashinfer/paged_attention_flashinfer_plan.h"

namespace paged_attention_flashinfer {

static constexpr int kPlanThreads = 256;
static constexpr int64_t kMostPlanBlocks = 1024;
static __global__ void __launch_bounds__(kPlanThreads) PlanKernel(Params p, Plan plan, int64_t tile_rows) {
  PlanBatch(p, plan, tile_rows, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x,
            [](bool found) { return __syncthreads_or(found) != 0; });
}

// FlashInfer's parameters, with the length of a context from where it is, instead of from a last page's.
template <typename T>
struct KernelParams : flashinfer::BatchPrefillPagedParams<T, T, T, int32_t> {
  const int32_t* context_lens;
  int32_t window;

  __host__ __device__ __forceinline__ uint32_t get_kv_len(uint32_t seq) const { return context_lens[seq]; }
};

// Logits leave LogitsTransform in powers of two: FlashInfer's own variant scales them later, and its mask, a logit of
// -5e4 before that, then no longer hides a key from a scale near 0 or below. tanh is the accurate one.
template <bool kHasCap>
struct Attention : flashinfer::AttentionVariantBase {
  uint32_t qo_len, kv_len, window_left;
  float sm_scale_log2;

  template <typename P>
  __device__ __forceinline__ Attention(const P& params, uint32_t seq, uint8_t*)
      : qo_len(params.get_qo_len(seq)), kv_len(params.get_kv_len(seq)), sm_scale_log2(1) {
    window_left = min(static_cast<uint32_t>(params.window - 1), kv_len);
  }

  template <typename P, typename Logit>
  __device__ __forceinline__ Logit LogitsTransform(const P& params, Logit logit, uint32_t, uint32_t, uint32_t, uint32_t,
                                                   uint32_t) {
    if constexpr (kHasCap) {
      const float cap = params.logits_soft_cap;
      return flashinfer::math::log2e * cap * tanhf(logit * params.sm_scale / cap);
    }
    return logit * (params.sm_scale * flashinfer::math::log2e);
  }

  template <typename P>
  __device__ __forceinline__ bool LogitsMask(const P&, uint32_t, uint32_t token, uint32_t key, uint32_t, uint32_t) {
    return key + qo_len + window_left >= kv_len + token;
  }
};

// How FlashInfer cuts a tile, by what fits twice into a multiprocessor of 164 KB of shared memory or more.
template <int kTileRows, int kHeadDim, typename T, bool kHasCap>
struct Traits {
  static constexpr uint32_t kWarps = flashinfer::get_num_warps_q(kTileRows);
  static constexpr uint32_t kKeyWarps = flashinfer::get_num_warps_kv(kTileRows);
  static constexpr uint32_t kKeySteps = kTileRows == 128 ? 4 : kTileRows == 64 ? 8 : 256 / kHeadDim;
  static constexpr auto kNoRotation = flashinfer::PosEncodingMode::kNone;
  using Type = flashinfer::KernelTraits<flashinfer::MaskMode::kCausal, kTileRows, flashinfer::get_num_mma_q(kTileRows),
                                        kKeySteps, kHeadDim / 16, kHeadDim / 16, kWarps, kKeyWarps, kNoRotation, T, T,
                                        T, float, int32_t, Attention<kHasCap>>;
  static_assert(!Type::IsInvalid(), "FlashInfer has no kernel of this shape");
  static_assert(sizeof(typename Type::SharedStorage) <= 82 << 10, "two blocks are to fit into a multiprocessor");
};

template <typename T>
static KernelParams<T> MakeKernelParams(const Params& p, const Plan& plan) {
  const auto integers = [](const int32_t* pointer) { return const_cast<int32_t*>(pointer); };
  T* cache = static_cast<T*>(const_cast<void*>(p.kv_cache));
  KernelParams<T> k = {};
  k.q = static_cast<T*>(const_cast<void*>(p.query));
  k.paged_kv =
      flashinfer::paged_kv_t<T, int32_t>(p.kv_heads, p.block_size, p.head_dim, p.seqs, flashinfer::QKVLayout::kNHD,
                                         cache, cache + p.blocks * p.block_size * p.kv_heads * p.head_dim, plan.pages,
                                         plan.first_pages, /*last_page_len=*/nullptr);
  k.q_indptr = k.o_indptr = integers(p.query_start_loc);
  k.o = static_cast<T*>(p.out);
  k.group_size = flashinfer::uint_fastdiv(p.heads / p.kv_heads);
  k.num_qo_heads = p.heads;
  k.q_stride_n = p.heads * p.head_dim;
  k.q_stride_h = p.head_dim;
  k.logits_soft_cap = p.soft_cap;
  k.sm_scale = p.scale;
  k.request_indices = plan.sequences;
  k.qo_tile_indices = plan.tiles;
  k.kv_tile_indices = plan.tiles;  // read, but used only where contexts are cut in parts
  k.block_valid_mask = plan.is_used;
  k.kv_chunk_size_ptr = plan.chunk_keys;
  k.context_lens = p.context_lens;
  k.window = static_cast<int32_t>(p.window);
  return k;
}

template <int kTileRows, int kHeadDim, typename T, bool kHasCap>
static cudaError_t LaunchTiles(cudaStream_t stream, const Params& p, const Plan& plan) {
  using KTraits = typename Traits<kTileRows, kHeadDim, T, kHasCap>::Type;
  constexpr size_t kSharedBytes = sizeof(typename KTraits::SharedStorage);
  const auto kernel = flashinfer::BatchPrefillWithPagedKVCacheKernel<KTraits, KernelParams<T>>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes));
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(Slots(p, kTileRows)), 1, static_cast<unsigned>(p.kv_heads));
  const dim3 block(32, KTraits::NUM_WARPS_Q, KTraits::NUM_WARPS_KV);
  kernel<<<grid, block, kSharedBytes, stream>>>(MakeKernelParams<T>(p, plan));
  return cudaGetLastError();
}

template <int kTileRows, int kHeadDim, typename T>
static cudaError_t DispatchCap(cudaStream_t stream, const Params& p, const Plan& plan) {
  return p.soft_cap > 0 ? LaunchTiles<kTileRows, kHeadDim, T, true>(stream, p, plan)
                        : LaunchTiles<kTileRows, kHeadDim, T, false>(stream, p, plan);
}

template <int kTileRows>
static cudaError_t Dispatch(cudaStream_t stream, const Params& p, const Plan& plan) {
  const bool is_bfloat16 = p.dtype == pyxla::PagedAttentionDtype::kBFloat16;
  if (p.head_dim == 64) {
    return is_bfloat16 ? DispatchCap<kTileRows, 64, nv_bfloat16>(stream, p, plan)
                       : DispatchCap<kTileRows, 64, half>(stream, p, plan);
  }
  return is_bfloat16 ? DispatchCap<kTileRows, 128, nv_bfloat16>(stream, p, plan)
                     : DispatchCap<kTileRows, 128, half>(stream, p, plan);
}

static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  if (p.tokens == 0) return cudaSuccess;
  const int64_t tile_rows = TileRows(p);
  const Plan plan = PlaceIn(p.workspace, p, tile_rows);
  const int64_t blocks = std::min(std::max(p.seqs, p.tokens), kMostPlanBlocks);
  PlanKernel<<<static_cast<unsigned>(blocks), kPlanThreads, 0, stream>>>(p, plan, tile_rows);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || p.seqs == 0) return error;
  switch (tile_rows) {
    case 16: return Dispatch<16>(stream, p, plan);
    case 64: return Dispatch<64>(stream, p, plan);
    default: return Dispatch<128>(stream, p, plan);
  }
}

}  // namespace paged_attention_flashinfer

namespace paged_attention {

int64_t WorkspaceBytes(const Params& params) { return paged_attention_flashinfer::PlanBytes(params); }

cudaError_t LaunchPagedAttention(cudaStream_t stream, const Params& params) {
  return paged_attention_flashinfer::Launch(stream, params);
}

}  // namespace paged_attention
