// Checks and the two handlers of scaled(Tensor x, float scale=1.0) -> Tensor. See scaled.h.
#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/parallel.h"
#include "scaled/scaled.h"

namespace {

constexpr char kOp[] = "scaled";

scaled_op::Dtype DtypeOf(const ffi::AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case ffi::BF16: return scaled_op::Dtype::kBFloat16;
    case ffi::F16: return scaled_op::Dtype::kFloat16;
    default: return scaled_op::Dtype::kFloat32;
  }
}

// Checks the arguments and fills in `params` for both platforms' functions.
ffi::Error MakeParams(ffi::AnyBuffer x, ffi::AnyBuffer out, double scale, scaled_op::Params* params) {
  // replace: the checks, in the order of the arguments; the fake function in scaled.py makes the same checks
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "x", x, {ffi::F32, ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "out", out, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "out", out, x.dimensions()));
  *params = {
      .x = x.untyped_data(),
      .out = out.untyped_data(),
      .element_count = static_cast<int64_t>(x.element_count()),
      .tensor_dtype = DtypeOf(x),
      .scale = scale,
  };
  return ffi::Error::Success();
}

ffi::Error Host(ffi::ThreadPool thread_pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out, double scale) {
  scaled_op::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, *out, scale, &params));
  constexpr int64_t kGrain = 1 << 15;
  pyxla::ParallelFor(thread_pool, params.element_count, kGrain,
                     [&params](int64_t begin, int64_t end) { scaled_op::ScaledHost(params, begin, end); });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()  // x
                           .Ret<ffi::AnyBuffer>()  // out
                           .Attr<double>("scale"));

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t cuda_stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out, double scale) {
  scaled_op::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, *out, scale, &params));
  return PYXLA_CUDA_STATUS(kOp, scaled_op::LaunchScaled(cuda_stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()  // x
                           .Ret<ffi::AnyBuffer>()  // out
                           .Attr<double>("scale"),
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(scaled, PYXLA_HOST_HANDLER("my_kernels_scaled", kHost) PYXLA_CUDA_HANDLER("my_kernels_scaled", kCuda))
