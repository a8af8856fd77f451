#include <algorithm>

#include "fused_decoder_layer/fused_decoder_layer.h"
#include "fused_decoder_layer/fused_decoder_layer_kernel.cuh"
#include "common/device/tensor_map.h"

namespace fused_decoder_layer {

using pyxla::BoxedDimension;

constexpr int64_t kAlignment = 256;  // bytes

static int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Behind one another in the workspace, each aligned.
static int64_t ScaledBytes(const Params& p) { return Aligned(p.tokens * p.hidden * 2); }
static int64_t GatedBytes(const Params& p) { return Aligned(p.tokens * p.inner * 2); }
static int64_t SquaresBytes(const Params& p) {
  return Aligned(p.tokens * (p.hidden / AddShape::kRows) * sizeof(float));
}

// x [tokens, k] * w [columns, k]^T; of a gated one w has 2 * columns rows, of one of heads they are heads of d.
template <typename T, typename S>
static cudaError_t MakeProduct(const void* x, const void* w, int64_t tokens, int64_t k, int64_t columns,
                               Product* product, int64_t d) {
  product->steps = static_cast<int>(k / kBoxColumns);
  product->columns = static_cast<int>(columns);
  const auto make_map = [](const void* matrix, std::initializer_list<BoxedDimension> dimensions, CUtensorMap* map) {
    const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return pyxla::MakeTensorMap(matrix, type, dimensions, CU_TENSOR_MAP_L2_PROMOTION_NONE, map);
  };
  const int64_t of_half = S::kOfHeads ? d / 2 : columns, heads = S::kOfHeads ? columns / d : 1;
  const auto parts = [](int64_t size, int part) { return static_cast<int>((size + part - 1) / part); };
  product->units = parts(of_half, S::kRowsOfHalf);
  product->tiles = product->units * parts(heads, S::kHeads);
  const BoxedDimension in_box{kBoxColumns, 1, kBoxColumns}, boxes{k / kBoxColumns, kBoxColumns, S::kSteps};
  const cudaError_t error = make_map(x, {in_box, {tokens, k, kMaxTokens}, boxes}, &product->x);
  if (error != cudaSuccess) return error;
  const BoxedDimension rows{of_half, k, S::kRowsOfHalf}, halves{S::kHalves, of_half * k, S::kHalves};
  return make_map(w, {in_box, rows, halves, {heads, S::kHalves * of_half * k, S::kHeads}, boxes}, &product->w);
}

template <typename T, bool kAsHeads>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  using LastShape = std::conditional_t<kAsHeads, QueryShape, QkvShape>;
  const auto kernel = Kernel<T, kAsHeads>;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  if (attributes.sharedSizeBytes == 0) return cudaErrorNoKernelImageForDevice;  // not sm_90a: an empty kernel

  DeviceParams device{};
  char* workspace = static_cast<char*>(p.workspace);
  device.scaled = workspace;
  device.gated = workspace + ScaledBytes(p);
  device.squares = reinterpret_cast<float*>(workspace + ScaledBytes(p) + GatedBytes(p));
  device.residual = p.residual;
  device.out = p.out;
  device.post_attention_norm = p.post_attention_norm;
  device.input_norm = p.input_norm;
  device.has_qkv = p.qkv_proj != nullptr;
  device.tokens = static_cast<int>(p.tokens);
  device.eps = static_cast<float>(p.eps);
  if (kAsHeads) device.heads = *p.heads;
  error = MakeProduct<T, AddShape>(p.attention, p.o_proj, p.tokens, p.width, p.hidden, &device.o, 0);
  if (error == cudaSuccess)
    error = MakeProduct<T, GateShape>(device.scaled, p.gate_up_proj, p.tokens, p.hidden, p.inner, &device.gate_up, 0);
  if (error == cudaSuccess)
    error = MakeProduct<T, AddShape>(device.gated, p.down_proj, p.tokens, p.inner, p.hidden, &device.down, 0);
  if (error == cudaSuccess && device.has_qkv)
    error = MakeProduct<T, LastShape>(device.scaled, p.qkv_proj, p.tokens, p.hidden, p.columns, &device.qkv,
                                      kAsHeads ? p.heads->d : 0);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
  if (error != cudaSuccess) return error;

  // Pairs of neighbours. Cooperative: all blocks are there at once, which the grid's barrier needs.
  cudaLaunchAttribute launch_attributes[2];
  launch_attributes[0].id = cudaLaunchAttributeClusterDimension;
  launch_attributes[0].val.clusterDim = {2, 1, 1};
  launch_attributes[1].id = cudaLaunchAttributeCooperative;
  launch_attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = 2;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kRingBytes;
  config.stream = stream;
  config.attrs = launch_attributes;
  config.numAttrs = 1;
  int pairs;
  error = cudaOccupancyMaxActiveClusters(&pairs, kernel, &config);
  if (error != cudaSuccess) return error;
  config.gridDim = 2 * std::max(pairs, 1);
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, device);
}

int64_t WorkspaceBytes(const Params& params) { return ScaledBytes(params) + GatedBytes(params) + SquaresBytes(params); }

template <typename T>
static cudaError_t LaunchOf(cudaStream_t stream, const Params& params) {
  return params.heads == nullptr ? Launch<T, false>(stream, params) : Launch<T, true>(stream, params);
}

cudaError_t LaunchFusedDecoderLayer(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
  return params.dtype == pyxla::FloatType::kFloat16 ? LaunchOf<__half>(stream, params)
                                                    : LaunchOf<__nv_bfloat16>(stream, params);
}

}  // namespace fused_decoder_layer
