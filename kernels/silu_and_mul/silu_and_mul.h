// out[r][i] = silu(x[r][i]) * x[r][d + i], silu(v) = v / (1 + exp(-v))
//
// _gated/gated.h has x, out and what is formed how. Source: SwiGLU, as there.
// Test: devtool test silu_and_mul
#pragma once

#include "_gated/gated.h"

namespace silu_and_mul {

using Params = pyxla::GatedParams;

// Elements [begin, end) of out on the calling thread.
void SiluAndMulHost(const Params& params, int64_t begin, int64_t end);

}  // namespace silu_and_mul

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace silu_and_mul {

cudaError_t LaunchSiluAndMul(cudaStream_t stream, const Params& params);

}  // namespace silu_and_mul
#endif
