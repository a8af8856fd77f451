// The functions of rms_norm; _rms_norm/rms_norm.h has the formula and what each pointer holds.
// Test: devtool test rms_norm
#pragma once

#include "_rms_norm/rms_norm.h"

namespace rms_norm {

using Params = pyxla::RmsNormParams;

// Rows [begin, end) on the calling thread.
void RmsNormHost(const Params& params, int64_t begin, int64_t end);

}  // namespace rms_norm

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace rms_norm {

cudaError_t LaunchRmsNorm(cudaStream_t stream, const Params& params);

}  // namespace rms_norm
#endif
