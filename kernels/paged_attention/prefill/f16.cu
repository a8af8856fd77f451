#include "paged_attention/kernels.h"
#include "paged_attention/prefill/launch.cuh"

namespace paged_attention::prefill {

cudaError_t LaunchFloat16(cudaStream_t stream, const Params& p) { return LaunchForDim<__half, __half>(stream, p); }

}  // namespace paged_attention::prefill
