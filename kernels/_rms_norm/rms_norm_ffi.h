// Checks of rms_norm(x, weight?, eps) -> out and its host handler, for the ops that compute it.
#pragma once

#include "_rms_norm/rms_norm.h"
#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/float_type_of.h"
#include "pyxla/host/parallel.h"

namespace pyxla {

/** Checks the arguments and fills in what both platforms' functions take. */
inline ffi::Error MakeRmsNormParams(const char* op, ffi::AnyBuffer x, std::optional<ffi::AnyBuffer> weight,
                                    ffi::AnyBuffer out, double eps, RmsNormParams* params) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "x", x, {ffi::F32, ffi::BF16, ffi::F16}));
  const auto dims = x.dimensions();
  if (dims.size() == 0) return Mismatch(op, "x", "rank 1 or more", "shape ()");
  const int64_t hidden = dims[dims.size() - 1];
  if (weight) {
    PYXLA_RETURN_IF_ERROR(CheckDtype(op, "weight", *weight, {x.element_type(), ffi::F32}));
    PYXLA_RETURN_IF_ERROR(CheckShape(op, "weight", *weight, {hidden}));
  }
  PYXLA_RETURN_IF_ERROR(CheckNotNegative(op, "eps", eps));
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "out", out, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(CheckShape(op, "out", out, dims));
  *params = {.x = x.untyped_data(),
             .weight = weight ? weight->untyped_data() : nullptr,
             .out = out.untyped_data(),
             .rows = hidden == 0 ? 0 : static_cast<int64_t>(x.element_count()) / hidden,
             .hidden = hidden,
             .eps = eps,
             .dtype = FloatTypeOf(x.element_type()),
             .weight_dtype = FloatTypeOf((weight ? *weight : x).element_type())};
  return ffi::Error::Success();
}

/** Hands pieces of the rows to `rows_on_host`; Params is RmsNormParams, or what an op adds to it. */
template <typename Params>
ffi::Error RmsNormOnHost(ffi::ThreadPool& pool, const Params& params,
                         void (*rows_on_host)(const Params&, int64_t begin, int64_t end)) {
  constexpr int64_t kElementsPerPiece = 1 << 17;
  const int64_t rows_per_piece = kElementsPerPiece / std::max<int64_t>(params.hidden, 1);
  ParallelFor(pool, params.rows, rows_per_piece, [&](int64_t begin, int64_t end) { rows_on_host(params, begin, end); });
  return ffi::Error::Success();
}

/** The binding of rms_norm's handlers; Context is ffi::ThreadPool or ffi::PlatformStream<cudaStream_t>. */
template <typename Context>
auto BindRmsNorm() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<ffi::AnyBuffer>()                 // x
      .template Arg<std::optional<ffi::AnyBuffer>>()  // weight
      .template Ret<ffi::AnyBuffer>()                 // out
      .template Attr<double>("eps");
}

}  // namespace pyxla
