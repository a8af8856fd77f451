#include "paged_attention/kernels.h"
#include "paged_attention/prefill/launch.cuh"

namespace paged_attention::prefill {

cudaError_t LaunchFloat8(cudaStream_t stream, const Params& p) {
  return p.dtype == Dtype::kBFloat16 ? LaunchForDim<__nv_bfloat16, __nv_fp8_e4m3>(stream, p)
                                     : LaunchForDim<__half, __nv_fp8_e4m3>(stream, p);
}

}  // namespace paged_attention::prefill
