#include <algorithm>

#include "attention_to_qkv/attention_to_qkv.h"
#include "attention_to_qkv/attention_to_qkv_kernel.cuh"

namespace attention_to_qkv {

constexpr int64_t kAlignment = 256;  // bytes

static int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Behind one another in the workspace, each aligned.
static int64_t ScaledBytes(const Params& p) { return Aligned(p.tokens * p.hidden * 2); }
static int64_t GatedBytes(const Params& p) { return Aligned(p.tokens * p.inner * 2); }
static int64_t SquaresBytes(const Params& p) {
  return Aligned(p.tokens * (p.hidden / (AddShape::kRows / 2)) * sizeof(float));
}

struct Dimension {
  int64_t size, stride;  // of elements
  int box;
};

// Boxes of T, zeros behind its end; the first dimension lies dense.
template <typename T, int kRank>
static cudaError_t MakeMap(const void* matrix, const Dimension (&dimensions)[kRank], CUtensorMap* map) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  cuuint64_t sizes[kRank], bytes[kRank];  // bytes between elements of a dimension, which the first one's are not said
  cuuint32_t box[kRank], steps[kRank];
  for (int i = 0; i < kRank; ++i) {
    sizes[i] = dimensions[i].size;
    bytes[i] = dimensions[i].stride * 2;
    box[i] = dimensions[i].box;
    steps[i] = 1;
  }
  const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      map, type, kRank, const_cast<void*>(matrix), sizes, bytes + 1, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// x [tokens, k] * w [columns, k]^T; of a gated one w has 2 * columns rows, of one in units they are heads of d.
template <typename T, typename S>
static cudaError_t MakeProduct(const void* x, const void* w, int64_t tokens, int64_t k, int64_t columns,
                               Product* product, int64_t d = 0) {
  product->tiles = static_cast<int>((columns + S::kRows - 1) / S::kRows);
  product->steps = static_cast<int>(k / kBoxColumns);
  product->columns = static_cast<int>(columns);
  const Dimension columns_of_k{k, 1, kBoxColumns};
  const cudaError_t error = MakeMap<T, 2>(x, {columns_of_k, {tokens, k, kMaxTokens}}, &product->x);
  if (error != cudaSuccess) return error;
  if constexpr (S::kInUnits) {
    const int64_t units = d / (2 * kUnitRows);
    product->units = static_cast<int>(units);
    const Dimension unit_rows{kUnitRows, k, kUnitRows}, halves{2, d / 2 * k, 2};
    const Dimension units_of_head{units, kUnitRows * k, 2}, heads{columns / d, d * k, 1};
    return MakeMap<T, 5>(w, {columns_of_k, unit_rows, halves, units_of_head, heads}, &product->w);
  } else {
    return MakeMap<T, 2>(w, {columns_of_k, {S::kGated ? 2 * columns : columns, k, S::kRows}}, &product->w);
  }
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
  error = MakeProduct<T, AddShape>(p.attention, p.o_proj, p.tokens, p.width, p.hidden, &device.o);
  if (error == cudaSuccess)
    error = MakeProduct<T, GateShape>(device.scaled, p.gate_up_proj, p.tokens, p.hidden, p.inner, &device.gate_up);
  if (error == cudaSuccess)
    error = MakeProduct<T, AddShape>(device.gated, p.down_proj, p.tokens, p.inner, p.hidden, &device.down);
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

cudaError_t LaunchAttentionToQkv(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
  return params.dtype == pyxla::FloatType::kFloat16 ? LaunchOf<__half>(stream, params)
                                                    : LaunchOf<__nv_bfloat16>(stream, params);
}

}  // namespace attention_to_qkv
