#include "paged_attention/decode/kernel.cuh"
#include "paged_attention/kernels.h"

namespace paged_attention::decode {

cudaError_t LaunchBFloat16(cudaStream_t stream, const Params& p, bool all_rows) {
  return LaunchForDim<__nv_bfloat16, __nv_bfloat16>(stream, p, all_rows);
}

}  // namespace paged_attention::decode
