// Checks of a gated activation, x -> out, and its host handler.
#pragma once

#include "_gated/gated.h"
#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/float_type_of.h"
#include "pyxla/host/parallel.h"

namespace pyxla {

/** Checks the arguments and fills in what both platforms' functions take. */
inline ffi::Error MakeGatedParams(const char* op, ffi::AnyBuffer x, ffi::AnyBuffer out, GatedParams* params) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "x", x, {ffi::F32, ffi::BF16, ffi::F16}));
  const auto dims = x.dimensions();
  if (dims.size() == 0) return Mismatch(op, "x", "rank 1 or more", "shape ()");
  std::vector<int64_t> shape(dims.begin(), dims.end());
  if (shape.back() % 2 != 0) return Mismatch(op, "x", "an even last dimension", shape.back());
  const int64_t d = shape.back() /= 2;
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "out", out, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(CheckShape(op, "out", out, shape));
  *params = {.x = x.untyped_data(),
             .out = out.untyped_data(),
             .rows = d == 0 ? 0 : static_cast<int64_t>(out.element_count()) / d,
             .d = d,
             .dtype = FloatTypeOf(x.element_type())};
  return ffi::Error::Success();
}

/** Hands pieces of out to `elements_on_host`; Params is GatedParams, or what an op adds to it. */
template <typename Params>
ffi::Error GatedOnHost(ffi::ThreadPool& pool, const Params& params,
                       void (*elements_on_host)(const Params&, int64_t begin, int64_t end)) {
  constexpr int64_t kGrain = 1 << 14;
  ParallelFor(pool, params.rows * params.d, kGrain,
              [&](int64_t begin, int64_t end) { elements_on_host(params, begin, end); });
  return ffi::Error::Success();
}

}  // namespace pyxla
