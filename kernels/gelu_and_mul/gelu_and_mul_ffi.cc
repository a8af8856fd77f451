// Checks and the two handlers of gelu_and_mul(x, approximate) -> out. See gelu_and_mul.h.
#include "common/checks.h"
#include "common/cuda.h"
#include "common/dtype.h"
#include "common/op_table.h"
#include "common/parallel.h"
#include "gelu_and_mul/gelu_and_mul.h"

namespace {

constexpr char kOp[] = "gelu_and_mul";

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(ffi::AnyBuffer x, ffi::AnyBuffer out, std::string_view approximate,
                      gelu_and_mul::Params* params) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "x", x, {ffi::F32, ffi::BF16, ffi::F16}));
  const auto dims = x.dimensions();
  if (dims.size() == 0) return pyxla::Mismatch(kOp, "x", "rank 1 or more", "shape ()");
  std::vector<int64_t> shape(dims.begin(), dims.end());
  if (shape.back() % 2 != 0) return pyxla::Mismatch(kOp, "x", "an even last dimension", shape.back());
  const int64_t d = shape.back() /= 2;
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "out", out, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "out", out, shape));
  if (approximate != "none" && approximate != "tanh") {
    return pyxla::Mismatch(kOp, "approximate", "none or tanh", approximate);
  }
  *params = {
      .x = x.untyped_data(),
      .out = out.untyped_data(),
      .rows = d == 0 ? 0 : static_cast<int64_t>(out.element_count()) / d,
      .d = d,
      .dtype = pyxla::FloatTypeOf(x.element_type()),
      .approximation = approximate == "none" ? gelu_and_mul::Approximation::kNone : gelu_and_mul::Approximation::kTanh};
  return ffi::Error::Success();
}

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out, std::string_view approximate) {
  gelu_and_mul::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, *out, approximate, &params));
  constexpr int64_t kGrain = 1 << 14;
  pyxla::ParallelFor(pool, params.rows * params.d, kGrain,
                     [&](int64_t begin, int64_t end) { gelu_and_mul::GeluAndMulHost(params, begin, end); });
  return ffi::Error::Success();
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
