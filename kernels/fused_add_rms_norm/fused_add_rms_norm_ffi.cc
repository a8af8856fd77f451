// Checks and the two handlers of fused_add_rms_norm(x, residual(a!), weight?, eps) -> out. See fused_add_rms_norm.h.
#include "_rms_norm/rms_norm_ffi.h"
#include "fused_add_rms_norm/fused_add_rms_norm.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"

namespace {

constexpr char kOp[] = "fused_add_rms_norm";

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(ffi::AnyBuffer x, ffi::AnyBuffer residual, std::optional<ffi::AnyBuffer> weight,
                      ffi::AnyBuffer new_residual, ffi::AnyBuffer out, double eps, fused_add_rms_norm::Params* params) {
  PYXLA_RETURN_IF_ERROR(pyxla::MakeRmsNormParams(kOp, x, weight, out, eps, params));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "residual", residual, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "residual", residual, x.dimensions()));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckInPlace(kOp, "residual", residual, new_residual));
  params->residual = residual.untyped_data();
  return ffi::Error::Success();
}

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer residual, std::optional<ffi::AnyBuffer> weight,
                ffi::Result<ffi::AnyBuffer> new_residual, ffi::Result<ffi::AnyBuffer> out, double eps) {
  fused_add_rms_norm::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, residual, weight, *new_residual, *out, eps, &params));
  return pyxla::RmsNormOnHost(pool, params, fused_add_rms_norm::FusedAddRmsNormHost);
}

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()                 // x
                           .Arg<ffi::AnyBuffer>()                 // residual
                           .Arg<std::optional<ffi::AnyBuffer>>()  // weight
                           .Ret<ffi::AnyBuffer>()                 // new_residual
                           .Ret<ffi::AnyBuffer>()                 // out
                           .Attr<double>("eps"));

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer residual, std::optional<ffi::AnyBuffer> weight,
                ffi::Result<ffi::AnyBuffer> new_residual, ffi::Result<ffi::AnyBuffer> out, double eps) {
  fused_add_rms_norm::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, residual, weight, *new_residual, *out, eps, &params));
  return PYXLA_CUDA_STATUS(kOp, fused_add_rms_norm::LaunchFusedAddRmsNorm(stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()                 // x
                           .Arg<ffi::AnyBuffer>()                 // residual
                           .Arg<std::optional<ffi::AnyBuffer>>()  // weight
                           .Ret<ffi::AnyBuffer>()                 // new_residual
                           .Ret<ffi::AnyBuffer>()                 // out
                           .Attr<double>("eps"),
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(fused_add_rms_norm, PYXLA_HOST_HANDLER("xla_gpu_fused_add_rms_norm", kHost)
                                       PYXLA_CUDA_HANDLER("xla_gpu_fused_add_rms_norm", kCuda))
