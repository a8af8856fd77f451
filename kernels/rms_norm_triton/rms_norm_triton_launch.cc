// Launches the kernel of triton_kernels.py as rms_norm's handler for CUDA launches it.
#include "rms_norm/rms_norm.h"

#if PYXLA_WITH_CUDA
#include "rms_norm_triton/triton_kernels.h"

namespace rms_norm {

cudaError_t LaunchRmsNorm(cudaStream_t stream, const Params& params) {
  return pyxla::LaunchStatus(rms_norm_triton_kernels::LaunchRmsNormRows(
      "rms_norm", stream, {params.x, params.dtype}, {params.weight, params.weight_dtype}, {params.out, params.dtype},
      params.rows, params.hidden, params.eps));
}

}  // namespace rms_norm
#endif
