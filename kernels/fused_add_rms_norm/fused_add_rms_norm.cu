#include "_rms_norm/rms_norm.cuh"
#include "fused_add_rms_norm/fused_add_rms_norm.h"
#include "fused_add_rms_norm/tuning.h"

namespace fused_add_rms_norm {

cudaError_t LaunchFusedAddRmsNorm(cudaStream_t stream, const Params& params) {
  const pyxla::RmsNormRows rows = {.x = params.x,
                                   .residual = params.residual,
                                   .weight = params.weight,
                                   .out = params.out,
                                   .rows = params.rows,
                                   .hidden = params.hidden,
                                   .inverse_hidden = 1.0 / static_cast<double>(params.hidden),
                                   .eps = params.eps};
  return pyxla::LaunchRmsNormRows<true, Tuning>(stream, params.dtype, params.weight_dtype, rows);
}

}  // namespace fused_add_rms_norm
