// Checks and the two handlers of fused_add_rms_norm(x, residual(a!), weight?, eps) -> out. See fused_add_rms_norm.h.
#include "common/checks.h"
#include "common/cuda.h"
#include "common/dtype.h"
#include "common/op_table.h"
#include "common/parallel.h"
#include "fused_add_rms_norm/fused_add_rms_norm.h"

namespace {

constexpr char kOp[] = "fused_add_rms_norm";

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(ffi::AnyBuffer x, ffi::AnyBuffer residual, std::optional<ffi::AnyBuffer> weight,
                      ffi::AnyBuffer new_residual, ffi::AnyBuffer out, double eps, fused_add_rms_norm::Params* params) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "x", x, {ffi::F32, ffi::BF16, ffi::F16}));
  const auto dims = x.dimensions();
  if (dims.size() == 0) return pyxla::Mismatch(kOp, "x", "rank 1 or more", "shape ()");
  const int64_t hidden = dims[dims.size() - 1];
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "residual", residual, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "residual", residual, dims));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckInPlace(kOp, "residual", residual, new_residual));
  if (weight) {
    PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "weight", *weight, {x.element_type(), ffi::F32}));
    PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "weight", *weight, {hidden}));
  }
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "out", out, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "out", out, dims));
  *params = {.x = x.untyped_data(),
             .residual = residual.untyped_data(),
             .weight = weight ? weight->untyped_data() : nullptr,
             .out = out.untyped_data(),
             .rows = hidden == 0 ? 0 : static_cast<int64_t>(x.element_count()) / hidden,
             .hidden = hidden,
             .eps = eps,
             .dtype = pyxla::FloatTypeOf(x.element_type()),
             .weight_dtype = pyxla::FloatTypeOf((weight ? *weight : x).element_type())};
  return ffi::Error::Success();
}

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer residual, std::optional<ffi::AnyBuffer> weight,
                ffi::Result<ffi::AnyBuffer> new_residual, ffi::Result<ffi::AnyBuffer> out, double eps) {
  fused_add_rms_norm::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, residual, weight, *new_residual, *out, eps, &params));
  constexpr int64_t kElementsPerPiece = 1 << 17;
  const int64_t rows_per_piece = kElementsPerPiece / std::max<int64_t>(params.hidden, 1);
  pyxla::ParallelFor(pool, params.rows, rows_per_piece,
                     [&](int64_t begin, int64_t end) { fused_add_rms_norm::FusedAddRmsNormHost(params, begin, end); });
  return ffi::Error::Success();
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
