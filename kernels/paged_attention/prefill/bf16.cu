#include "paged_attention/kernels.h"
#include "paged_attention/prefill/launch.cuh"

namespace paged_attention::prefill {

cudaError_t LaunchBFloat16(cudaStream_t stream, const Params& p) {
  return LaunchForDim<__nv_bfloat16, __nv_bfloat16>(stream, p);
}

}  // namespace paged_attention::prefill
