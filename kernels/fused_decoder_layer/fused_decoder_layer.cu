#include <algorithm>

#include "fused_decoder_layer/fused_decoder_layer.h"
#include "fused_decoder_layer/sm90/kernel.cuh"
#include "pyxla/ceil_div.h"
#include "pyxla/device/tensor_map.h"

namespace fused_decoder_layer {

using pyxla::BoxedDimension;
using pyxla::CeilDiv;

constexpr int64_t kAlignment = 256;  // bytes

static int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, kAlignment) * kAlignment; }

// The parts of the workspace, one after the other, each aligned.
static int64_t ScaledBytes(const Params& p) { return Aligned(p.tokens * p.hidden * 2); }
static int64_t GatedBytes(const Params& p) { return Aligned(p.tokens * p.inner * 2); }
static int64_t SquareSumsBytes(const Params& p) {
  return Aligned(p.tokens * (p.hidden / sm90::ResidualShape::kBlockN) * sizeof(float));
}

int64_t WorkspaceBytes(const Params& params) {
  return ScaledBytes(params) + GatedBytes(params) + SquareSumsBytes(params);
}

namespace sm90 {

// a [tokens, k] * b [n, k]^T; b has 2 * n rows if gated, and heads of d rows if rotary.
template <typename T, typename Shape>
static cudaError_t MakeGemm(const void* a, const void* b, int64_t tokens, int64_t k, int64_t n, Gemm* gemm, int64_t d) {
  gemm->k_blocks = static_cast<int>(k / kBlockK);
  gemm->n = static_cast<int>(n);
  const auto make_map = [](const void* matrix, std::initializer_list<BoxedDimension> dimensions, CUtensorMap* map) {
    const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return pyxla::MakeTensorMap(matrix, type, dimensions, CU_TENSOR_MAP_L2_PROMOTION_NONE, map);
  };
  const int64_t half = Shape::kRotary ? d / 2 : n, heads = Shape::kRotary ? n / d : 1;
  gemm->tiles_per_head = static_cast<int>(CeilDiv(half, Shape::kHalfRows));
  gemm->tiles = static_cast<int>(gemm->tiles_per_head * CeilDiv(heads, Shape::kHeads));
  const BoxedDimension in_block{kBlockK, 1, kBlockK}, blocks{k / kBlockK, kBlockK, Shape::kBlocksPerStage};
  const cudaError_t error = make_map(a, {in_block, {tokens, k, RowsOfA(static_cast<int>(tokens))}, blocks}, &gemm->a);
  if (error != cudaSuccess) return error;
  const BoxedDimension rows{half, k, Shape::kHalfRows}, halves{Shape::kHalves, half * k, Shape::kHalves};
  return make_map(b, {in_block, rows, halves, {heads, Shape::kHalves * half * k, Shape::kHeads}, blocks}, &gemm->b);
}

template <typename T, bool kRotary>
static cudaError_t MakeKernelParams(const Params& p, KernelParams* kernel) {
  using LastShape = std::conditional_t<kRotary, RotaryShape, QkvShape>;
  char* workspace = static_cast<char*>(p.workspace);
  kernel->scaled = workspace;
  kernel->gated = workspace + ScaledBytes(p);
  kernel->square_sums = reinterpret_cast<float*>(workspace + ScaledBytes(p) + GatedBytes(p));
  kernel->residual = p.residual;
  kernel->out = p.out;
  kernel->post_attention_norm = p.post_attention_norm;
  kernel->input_norm = p.input_norm;
  kernel->has_qkv = p.qkv_proj != nullptr;
  kernel->tokens = static_cast<int>(p.tokens);
  kernel->eps = static_cast<float>(p.eps);
  if (kRotary) kernel->rotary = *p.rotary;
  const int64_t m = p.tokens, d = kRotary ? p.rotary->d : 0;
  cudaError_t error = MakeGemm<T, ResidualShape>(p.attention, p.o_proj, m, p.width, p.hidden, &kernel->o, 0);
  if (error == cudaSuccess)
    error = MakeGemm<T, GatedShape>(kernel->scaled, p.gate_up_proj, m, p.hidden, p.inner, &kernel->gate_up, 0);
  if (error == cudaSuccess)
    error = MakeGemm<T, ResidualShape>(kernel->gated, p.down_proj, m, p.inner, p.hidden, &kernel->down, 0);
  if (error == cudaSuccess && kernel->has_qkv)
    error = MakeGemm<T, LastShape>(kernel->scaled, p.qkv_proj, m, p.hidden, p.columns, &kernel->qkv, d);
  return error;
}

template <typename T, bool kRotary>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  const auto kernel = FusedDecoderLayerKernel<T, kRotary>;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  if (attributes.sharedSizeBytes == 0) return cudaErrorNoKernelImageForDevice;  // not sm_90a: an empty kernel
  KernelParams kernel_params{};
  error = MakeKernelParams<T, kRotary>(p, &kernel_params);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;

  // A cooperative launch has all CTAs resident, which the grid's barrier needs.
  cudaLaunchAttribute launch_attributes[2];
  launch_attributes[0].id = cudaLaunchAttributeClusterDimension;
  launch_attributes[0].val.clusterDim = {2, 1, 1};
  launch_attributes[1].id = cudaLaunchAttributeCooperative;
  launch_attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = 2;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = launch_attributes;
  config.numAttrs = 1;
  int clusters;
  error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (error != cudaSuccess) return error;
  config.gridDim = 2 * std::max(clusters, 1);
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, kernel_params);
}

template <typename T>
static cudaError_t LaunchFor(cudaStream_t stream, const Params& params) {
  return params.rotary == nullptr ? Launch<T, false>(stream, params) : Launch<T, true>(stream, params);
}

}  // namespace sm90

cudaError_t LaunchFusedDecoderLayer(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
  return params.dtype == pyxla::FloatType::kFloat16 ? sm90::LaunchFor<__half>(stream, params)
                                                    : sm90::LaunchFor<__nv_bfloat16>(stream, params);
}

}  // namespace fused_decoder_layer
