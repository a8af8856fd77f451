#include "paged_attention/decode/kernel.cuh"
#include "paged_attention/kernels.h"

namespace paged_attention::decode {

cudaError_t LaunchFloat16(cudaStream_t stream, const Params& p, bool all_rows) {
  return LaunchForDim<__half, __half>(stream, p, all_rows);
}

}  // namespace paged_attention::decode
