// Checks and the two handlers of grouped_product(x, weight, experts, bias?) -> out. See grouped_product.h.
#include "grouped_product/grouped_product.h"
#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/float_type_of.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/parallel.h"

namespace {

using grouped_product::Params;

constexpr char kOp[] = "grouped_product";

ffi::Error MakeParams(const ffi::AnyBuffer& x, const ffi::AnyBuffer& weight, const ffi::AnyBuffer& experts,
                      const std::optional<ffi::AnyBuffer>& bias, const ffi::AnyBuffer& out, Params* params) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "x", x, {ffi::F32, ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "x", x, 3));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "weight", weight, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "weight", weight, 3));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "experts", experts, {ffi::S32}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "experts", experts, 2));
  const int64_t tokens = x.dimensions()[0], x_rows = x.dimensions()[1], k = x.dimensions()[2];
  const int64_t num_experts = weight.dimensions()[0], n = weight.dimensions()[1], top_k = experts.dimensions()[1];
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "weight", weight, {num_experts, n, k}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "experts", experts, {tokens, top_k}));
  if (x_rows != 1 && x_rows != top_k) {
    return pyxla::Mismatch(kOp, "x", "1 row or " + std::to_string(top_k) + " rows for each token", x_rows);
  }
  if (bias) {
    PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "bias", *bias, {x.element_type()}));
    PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "bias", *bias, {num_experts, n}));
  }
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "out", out, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "out", out, {tokens, top_k, n}));
  *params = {.x = x.untyped_data(),
             .weight = weight.untyped_data(),
             .experts = static_cast<const int32_t*>(experts.untyped_data()),
             .bias = bias ? bias->untyped_data() : nullptr,
             .out = out.untyped_data(),
             .tokens = tokens,
             .x_rows = x_rows,
             .top_k = top_k,
             .num_experts = num_experts,
             .n = n,
             .k = k,
             .dtype = pyxla::FloatTypeOf(x.element_type()),
             .workspace = nullptr};
  return ffi::Error::Success();
}

using Result = ffi::Result<ffi::AnyBuffer>;

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::AnyBuffer experts,
                std::optional<ffi::AnyBuffer> bias, Result out, Result /*workspace*/) {
  Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, weight, experts, bias, *out, &params));
  grouped_product::GroupedProductHost(params, [&](int64_t items, int64_t per_piece, const auto& run) {
    pyxla::ParallelFor(pool, items, per_piece, run);
  });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()                 // x
                           .Arg<ffi::AnyBuffer>()                 // weight
                           .Arg<ffi::AnyBuffer>()                 // experts
                           .Arg<std::optional<ffi::AnyBuffer>>()  // bias
                           .Ret<ffi::AnyBuffer>()                 // out
                           .Ret<ffi::AnyBuffer>());               // workspace

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::AnyBuffer experts,
                std::optional<ffi::AnyBuffer> bias, Result out, Result workspace) {
  Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(x, weight, experts, bias, *out, &params));
  const int64_t bytes = grouped_product::WorkspaceBytes(params);
  if (static_cast<int64_t>(workspace->size_bytes()) < bytes) {
    return pyxla::Mismatch(kOp, "workspace", "at least " + std::to_string(bytes) + " bytes", workspace->size_bytes());
  }
  params.workspace = workspace->untyped_data();
  return PYXLA_CUDA_STATUS(kOp, grouped_product::LaunchGroupedProduct(stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()                 // x
                           .Arg<ffi::AnyBuffer>()                 // weight
                           .Arg<ffi::AnyBuffer>()                 // experts
                           .Arg<std::optional<ffi::AnyBuffer>>()  // bias
                           .Ret<ffi::AnyBuffer>()                 // out
                           .Ret<ffi::AnyBuffer>(),                // workspace
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(grouped_product, PYXLA_HOST_HANDLER("xla_gpu_grouped_product", kHost)
                                    PYXLA_CUDA_HANDLER("xla_gpu_grouped_product", kCuda))
