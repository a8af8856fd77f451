// Prefill over a float8 cache, on sm_90a alone.
#include "paged_attention/kernels.h"
#include "paged_attention/prefill/sm90_kernel.cuh"

namespace paged_attention::prefill {

// Calls `function` with the shape of the kernel for these arguments, if there is one.
template <typename F>
cudaError_t WithShape(const Params& p, F function) {
  const auto of_dim = [&](auto dim) {
    return p.dtype == Dtype::kBFloat16 ? function(sm90::Shape<__nv_bfloat16, __nv_fp8_e4m3, dim.value>())
                                       : function(sm90::Shape<__half, __nv_fp8_e4m3, dim.value>());
  };
  if (p.head_dim == 64) return of_dim(std::integral_constant<int, 64>());
  if (p.head_dim == 128) return of_dim(std::integral_constant<int, 128>());
  return cudaSuccess;
}

bool CoversFloat8(const Params& p) {
  bool covers = false;
  WithShape(p, [&](auto shape) { return sm90::Covers<decltype(shape)>(p, &covers); });
  return covers;
}

cudaError_t LaunchFloat8(cudaStream_t stream, const Params& p) {
  bool launched = false;
  return WithShape(p, [&](auto shape) { return sm90::Launch<decltype(shape)>(stream, p, &launched); });
}

}  // namespace paged_attention::prefill
