// y = x + residual; residual = y; out[r][i] = y[r][i] / sqrt(mean_i(y[r][i]^2) + eps) * weight[i]
//
//   residual: [rows, hidden], T, contiguous, read and written
//
// _rms_norm/rms_norm.h has T, x, weight and out. y is formed in float; residual and out are rounded from it once each.
// Source: as there; the fused form is vLLM's.
// Test: devtool test fused_add_rms_norm
#pragma once

#include "_rms_norm/rms_norm.h"

namespace fused_add_rms_norm {

struct Params : pyxla::RmsNormParams {
  void* residual;
};

// Rows [begin, end) on the calling thread.
void FusedAddRmsNormHost(const Params& params, int64_t begin, int64_t end);

}  // namespace fused_add_rms_norm

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace fused_add_rms_norm {

cudaError_t LaunchFusedAddRmsNorm(cudaStream_t stream, const Params& params);

}  // namespace fused_add_rms_norm
#endif
