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

// The matrix [rows, columns] as boxes of box_rows x kBoxColumns, zeros behind its end.
template <typename T>
static cudaError_t MakeMap(const void* matrix, int64_t rows, int64_t columns, int box_rows, CUtensorMap* map) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[2] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      map, type, 2, const_cast<void*>(matrix), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// x [tokens, k] * w [columns, k]^T; of a gated one w has 2 * columns rows.
template <typename T, typename S>
static cudaError_t MakeProduct(const void* x, const void* w, int64_t tokens, int64_t k, int64_t columns,
                               Product* product) {
  product->tiles = static_cast<int>((columns + S::kRows - 1) / S::kRows);
  product->steps = static_cast<int>(k / kBoxColumns);
  product->columns = static_cast<int>(columns);
  const cudaError_t error = MakeMap<T>(x, tokens, k, kMaxTokens, &product->x);
  if (error != cudaSuccess) return error;
  return MakeMap<T>(w, S::kGated ? 2 * columns : columns, k, S::kRows, &product->w);
}

template <typename T>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  const auto kernel = Kernel<T>;
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
  error = MakeProduct<T, AddShape>(p.attention, p.o_proj, p.tokens, p.width, p.hidden, &device.o);
  if (error == cudaSuccess)
    error = MakeProduct<T, GateShape>(device.scaled, p.gate_up_proj, p.tokens, p.hidden, p.inner, &device.gate_up);
  if (error == cudaSuccess)
    error = MakeProduct<T, AddShape>(device.gated, p.down_proj, p.tokens, p.inner, p.hidden, &device.down);
  if (error == cudaSuccess && device.has_qkv)
    error = MakeProduct<T, QkvShape>(device.scaled, p.qkv_proj, p.tokens, p.hidden, p.columns, &device.qkv);
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

cudaError_t LaunchAttentionToQkv(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
  return params.dtype == pyxla::FloatType::kFloat16 ? Launch<__half>(stream, params)
                                                    : Launch<__nv_bfloat16>(stream, params);
}

}  // namespace attention_to_qkv
