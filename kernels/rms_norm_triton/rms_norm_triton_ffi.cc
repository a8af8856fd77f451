// The two handlers of rms_norm_triton(x, weight?, eps) -> out: rms_norm, with its device code in Triton.
#include "_rms_norm/rms_norm_ffi.h"
#include "common/ffi/op_table.h"
#include "rms_norm_triton/rms_norm_triton.h"
#if PYXLA_WITH_CUDA
#include "rms_norm_triton/triton_kernels.h"
#endif

namespace {

constexpr char kOp[] = "rms_norm_triton";

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer x, std::optional<ffi::AnyBuffer> weight,
                ffi::Result<ffi::AnyBuffer> out, double eps) {
  pyxla::RmsNormParams params;
  PYXLA_RETURN_IF_ERROR(pyxla::MakeRmsNormParams(kOp, x, weight, *out, eps, &params));
  return pyxla::RmsNormOnHost(pool, params, rms_norm_triton::RmsNormHost);
}

XLA_FFI_DEFINE_HANDLER(kHost, Host, pyxla::BindRmsNorm<ffi::ThreadPool>());

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t stream, ffi::AnyBuffer x, std::optional<ffi::AnyBuffer> weight,
                ffi::Result<ffi::AnyBuffer> out, double eps) {
  pyxla::RmsNormParams params;
  PYXLA_RETURN_IF_ERROR(pyxla::MakeRmsNormParams(kOp, x, weight, *out, eps, &params));
  // An absent weight is a null pointer to elements of x's type.
  const ffi::DataType weight_dtype = (weight ? *weight : x).element_type();
  return rms_norm_triton_kernels::LaunchRmsNormRows(kOp, stream, x, {params.weight, weight_dtype}, *out, params.rows,
                                                    params.hidden, params.eps);
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda, pyxla::BindRmsNorm<ffi::PlatformStream<cudaStream_t>>(),
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(rms_norm_triton, PYXLA_HOST_HANDLER("xla_gpu_rms_norm_triton", kHost)
                                    PYXLA_CUDA_HANDLER("xla_gpu_rms_norm_triton", kCuda))
