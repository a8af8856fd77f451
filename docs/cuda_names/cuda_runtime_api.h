// The names of CUDA that pyxla/include uses, for reading its comments where CUDA is not installed. Nothing is compiled
// with this file.
#pragma once

#include <cstddef>

#define __device__
#define __global__
#define __host__
#define __shared__
#define __launch_bounds__(...)

struct float2 {
  float x, y;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1);
};
extern const dim3 blockIdx, threadIdx, blockDim, gridDim;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorNotSupported };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum cudaDriverEntryPointFlags { cudaEnableDefault };
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult*);
using cudaStream_t = struct CUstream_st*;
using cudaKernel_t = struct CUkern_st*;
const char* cudaGetErrorName(cudaError_t);
const char* cudaGetErrorString(cudaError_t);
