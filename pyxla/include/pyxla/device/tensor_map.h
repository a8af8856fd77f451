// How asynchronous copies (sm_90 and newer) find boxes of a tensor in global memory. Host code. Source: CUDA Driver
// API, "Tensor Map Object Management".
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>

namespace pyxla {

/** A dimension of a tensor: its size, the elements from one to the next, and how many of them a box has. */
struct BoxedDimension {
  int64_t size;
  int64_t stride;
  int box;
};

/**
 * Describes a tensor of at most five dimensions, the innermost first. Of 16-bit elements a box has 64 of that one: in
 * shared memory the eight 16-byte chunks of these 128 bytes are permuted by the row (SwizzledTile). A box of bytes
 * (CU_TENSOR_MAP_DATA_TYPE_UINT8) is not permuted. What a box has of places outside of the tensor is zero.
 */
inline cudaError_t MakeTensorMap(const void* tensor, CUtensorMapDataType type,
                                 std::initializer_list<BoxedDimension> dimensions, CUtensorMapL2promotion promotion,
                                 CUtensorMap* map) {
  const bool is_bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8;
  constexpr int kMaxRank = 5;
  if (dimensions.size() > kMaxRank) return cudaErrorInvalidValue;
  // By name, because libcuda.so is not there where the library is built or loaded without a GPU.
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  cuuint64_t sizes[kMaxRank], bytes[kMaxRank];  // bytes[0], between the innermost elements, is not said
  cuuint32_t box[kMaxRank], steps[kMaxRank], rank = 0;
  for (const BoxedDimension& dimension : dimensions) {
    sizes[rank] = dimension.size;
    bytes[rank] = dimension.stride * (is_bytes ? 1 : 2);
    box[rank] = dimension.box;
    steps[rank++] = 1;
  }
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      map, type, rank, const_cast<void*>(tensor), sizes, bytes + 1, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      is_bytes ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace pyxla
