// The host function of rms_norm_triton; _rms_norm/rms_norm.h has the formula, triton_kernels.py the device code.
// Test: devtool test rms_norm_triton
#pragma once

#include "_rms_norm/rms_norm.h"

namespace rms_norm_triton {

// Rows [begin, end) on the calling thread.
void RmsNormHost(const pyxla::RmsNormParams& params, int64_t begin, int64_t end);

}  // namespace rms_norm_triton
