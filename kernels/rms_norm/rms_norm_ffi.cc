// Checks and the two handlers of rms_norm(x, weight?, eps) -> out. See rms_norm.h.
#include "_rms_norm/rms_norm_ffi.h"

#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"
#include "rms_norm/rms_norm.h"

namespace {

constexpr char kOp[] = "rms_norm";

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer x, std::optional<ffi::AnyBuffer> weight,
                ffi::Result<ffi::AnyBuffer> out, double eps) {
  rms_norm::Params params;
  PYXLA_RETURN_IF_ERROR(pyxla::MakeRmsNormParams(kOp, x, weight, *out, eps, &params));
  return pyxla::RmsNormOnHost(pool, params, rms_norm::RmsNormHost);
}

XLA_FFI_DEFINE_HANDLER(kHost, Host, pyxla::BindRmsNorm<ffi::ThreadPool>());

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t stream, ffi::AnyBuffer x, std::optional<ffi::AnyBuffer> weight,
                ffi::Result<ffi::AnyBuffer> out, double eps) {
  rms_norm::Params params;
  PYXLA_RETURN_IF_ERROR(pyxla::MakeRmsNormParams(kOp, x, weight, *out, eps, &params));
  return PYXLA_CUDA_STATUS(kOp, rms_norm::LaunchRmsNorm(stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda, pyxla::BindRmsNorm<ffi::PlatformStream<cudaStream_t>>(),
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(rms_norm, PYXLA_HOST_HANDLER("xla_gpu_rms_norm", kHost) PYXLA_CUDA_HANDLER("xla_gpu_rms_norm", kCuda))
