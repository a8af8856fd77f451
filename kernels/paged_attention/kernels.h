// The three CUDA kernels among which paged_attention.cu chooses. Each takes what paged_attention.h says of Params.
#pragma once

#include <cuda_runtime_api.h>

#include "paged_attention/paged_attention.h"

namespace paged_attention {

// generic/generic.cu: any arguments; one CTA per token, kv head and four heads of its group.
cudaError_t LaunchGeneric(cudaStream_t stream, const Params& params);

// decode/decode.cu: split keys, for sequences of few new tokens, padding rows and rows without a result;
// with all_rows right for any.
bool DecodeCovers(const Params& params);
cudaError_t LaunchDecode(cudaStream_t stream, const Params& params, bool all_rows);

// The rows of results in the workspace, and a launch for one dtype of the cache: decode/bf16.cu, f16.cu and f8.cu,
// which compile side by side.
namespace decode {
int64_t ResultRows(const Params& params);
cudaError_t LaunchBFloat16(cudaStream_t stream, const Params& params, bool all_rows);
cudaError_t LaunchFloat16(cudaStream_t stream, const Params& params, bool all_rows);
cudaError_t LaunchFloat8(cudaStream_t stream, const Params& params, bool all_rows);
}  // namespace decode

// prefill/prefill.cu: tensor cores, for sequences of many new tokens; any arguments that DecodeCovers.
cudaError_t LaunchPrefill(cudaStream_t stream, const Params& params);

// The rows of results in the workspace, and a launch for one dtype of the cache: prefill/bf16.cu, f16.cu and f8.cu.
namespace prefill {
int64_t ResultRows(const Params& params);
cudaError_t LaunchBFloat16(cudaStream_t stream, const Params& params);
cudaError_t LaunchFloat16(cudaStream_t stream, const Params& params);
cudaError_t LaunchFloat8(cudaStream_t stream, const Params& params);
}  // namespace prefill

}  // namespace paged_attention
