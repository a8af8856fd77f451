// Checks and the two handlers of flashinfer_silu_and_mul(Tensor x) -> Tensor. See flashinfer_silu_and_mul.h.
#include "flashinfer_silu_and_mul/flashinfer_silu_and_mul.h"
#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/parallel.h"

namespace {

constexpr char kOp[] = "flashinfer_silu_and_mul";

flashinfer_silu_and_mul_op::Dtype DtypeOf(const ffi::AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case ffi::BF16: return flashinfer_silu_and_mul_op::Dtype::kBFloat16;
    case ffi::F16: return flashinfer_silu_and_mul_op::Dtype::kFloat16;
    default: return flashinfer_silu_and_mul_op::Dtype::kFloat32;
  }
}

// Checks the arguments and fills in `params` for both platforms' functions.
ffi::Error MakeParams(ffi::AnyBuffer x, ffi::AnyBuffer out, flashinfer_silu_and_mul_op::Params* params) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "x", x, {ffi::F32, ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "x", x, 2));
  const int64_t rows = x.dimensions()[0], columns = x.dimensions()[1] / 2;
  if (x.dimensions()[1] % 16) {
    return pyxla::Mismatch(kOp, "x", "columns that are a multiple of 16", x.dimensions()[1]);
  }
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "out", out, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "out", out, {rows, columns}));
  *params = {
      .x = x.untyped_data(),
      .out = out.untyped_data(),
      .rows = rows,
      .columns = columns,
      .dtype = DtypeOf(x),
  };
  return ffi::Error::Success();
}

ffi::Error Host(ffi::ThreadPool thread_pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  flashinfer_silu_and_mul_op::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, *out, &params));
  pyxla::ParallelFor(thread_pool, params.rows, 16, [&params](int64_t begin, int64_t end) {
    flashinfer_silu_and_mul_op::SiluAndMulHost(params, begin, end);
  });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()    // x
                           .Ret<ffi::AnyBuffer>());  // out

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t cuda_stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  flashinfer_silu_and_mul_op::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, *out, &params));
  return PYXLA_CUDA_STATUS(kOp, flashinfer_silu_and_mul_op::LaunchSiluAndMul(cuda_stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()   // x
                           .Ret<ffi::AnyBuffer>(),  // out
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(flashinfer_silu_and_mul, PYXLA_HOST_HANDLER("real_kernels_flashinfer_silu_and_mul", kHost)
                                            PYXLA_CUDA_HANDLER("real_kernels_flashinfer_silu_and_mul", kCuda))
