#include "_rms_norm/rms_norm.cuh"
#include "rms_norm/rms_norm.h"
#include "rms_norm/tuning.h"

namespace rms_norm {

cudaError_t LaunchRmsNorm(cudaStream_t stream, const Params& params) {
  const pyxla::RmsNormRows rows = {.x = params.x,
                                   .residual = nullptr,
                                   .weight = params.weight,
                                   .out = params.out,
                                   .rows = params.rows,
                                   .hidden = params.hidden,
                                   .inverse_hidden = 1.0 / static_cast<double>(params.hidden),
                                   .eps = params.eps};
  return pyxla::LaunchRmsNormRows<false, Tuning>(stream, params.dtype, params.weight_dtype, rows);
}

}  // namespace rms_norm
