// Checks and the two handlers of gelu_and_mul(x, approximate) -> out. See gelu_and_mul.h.
#include "_gated/gated_ffi.h"
#include "gelu_and_mul/gelu_and_mul.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"

namespace {

constexpr char kOp[] = "gelu_and_mul";

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(ffi::AnyBuffer x, ffi::AnyBuffer out, std::string_view approximate,
                      gelu_and_mul::Params* params) {
  PYXLA_RETURN_IF_ERROR(pyxla::MakeGatedParams(kOp, x, out, params));
  if (approximate != "none" && approximate != "tanh") {
    return pyxla::Mismatch(kOp, "approximate", "none or tanh", approximate);
  }
  params->approximation =
      approximate == "none" ? gelu_and_mul::Approximation::kNone : gelu_and_mul::Approximation::kTanh;
  return ffi::Error::Success();
}

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out, std::string_view approximate) {
  gelu_and_mul::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, *out, approximate, &params));
  return pyxla::GatedOnHost(pool, params, gelu_and_mul::GeluAndMulHost);
}

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()  // x
                           .Ret<ffi::AnyBuffer>()  // out
                           .Attr<std::string_view>("approximate"));

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out, std::string_view approximate) {
  gelu_and_mul::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, *out, approximate, &params));
  return PYXLA_CUDA_STATUS(kOp, gelu_and_mul::LaunchGeluAndMul(stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()  // x
                           .Ret<ffi::AnyBuffer>()  // out
                           .Attr<std::string_view>("approximate"),
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(gelu_and_mul,
               PYXLA_HOST_HANDLER("xla_gpu_gelu_and_mul", kHost) PYXLA_CUDA_HANDLER("xla_gpu_gelu_and_mul", kCuda))
