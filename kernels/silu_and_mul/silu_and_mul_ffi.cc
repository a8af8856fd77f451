// The two handlers of silu_and_mul(x) -> out. See silu_and_mul.h.
#include "_gated/gated_ffi.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"
#include "silu_and_mul/silu_and_mul.h"

namespace {

constexpr char kOp[] = "silu_and_mul";

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  silu_and_mul::Params params;
  PYXLA_RETURN_IF_ERROR(pyxla::MakeGatedParams(kOp, x, *out, &params));
  return pyxla::GatedOnHost(pool, params, silu_and_mul::SiluAndMulHost);
}

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()    // x
                           .Ret<ffi::AnyBuffer>());  // out

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  silu_and_mul::Params params;
  PYXLA_RETURN_IF_ERROR(pyxla::MakeGatedParams(kOp, x, *out, &params));
  return PYXLA_CUDA_STATUS(kOp, silu_and_mul::LaunchSiluAndMul(stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()   // x
                           .Ret<ffi::AnyBuffer>(),  // out
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(silu_and_mul,
               PYXLA_HOST_HANDLER("xla_gpu_silu_and_mul", kHost) PYXLA_CUDA_HANDLER("xla_gpu_silu_and_mul", kCuda))
