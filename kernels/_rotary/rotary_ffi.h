// Checks of what an op that rotates heads takes for it.
#pragma once

#include "_rotary/rotary.h"
#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/float_type_of.h"

namespace pyxla {

/** Checks positions and table for heads x, [tokens, any, d] of a dtype that was checked, and fills in `params`. */
inline ffi::Error MakeRotaryParams(const char* op, const ffi::AnyBuffer& x, const ffi::AnyBuffer& positions,
                                   const ffi::AnyBuffer& cos_sin_cache, bool is_neox, RotaryParams* params) {
  const int64_t tokens = x.dimensions()[0], d = x.dimensions()[2];
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "positions", positions, {ffi::S32, ffi::S64}));
  PYXLA_RETURN_IF_ERROR(CheckShape(op, "positions", positions, {tokens}));
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "cos_sin_cache", cos_sin_cache, {x.element_type(), ffi::F32}));
  PYXLA_RETURN_IF_ERROR(CheckRank(op, "cos_sin_cache", cos_sin_cache, 2));
  const int64_t rot_dim = cos_sin_cache.dimensions()[1];
  if (rot_dim % 2 != 0 || rot_dim > d) {
    return Mismatch(op, "cos_sin_cache", "an even last dimension of at most " + std::to_string(d), rot_dim);
  }
  *params = {.positions = {positions.untyped_data(), positions.element_type() == ffi::S64},
             .cos_sin_cache = cos_sin_cache.untyped_data(),
             .tokens = tokens,
             .d = d,
             .rot_dim = rot_dim,
             .max_position = cos_sin_cache.dimensions()[0],
             .interleaved = !is_neox,
             .dtype = FloatTypeOf(x.element_type()),
             .table_dtype = FloatTypeOf(cos_sin_cache.element_type())};
  return ffi::Error::Success();
}

/** Positions, which only the host can refuse: before any is used. */
inline ffi::Error CheckPositions(const char* op, const RotaryParams& p) {
  for (int64_t token = 0; token < p.tokens; ++token) {
    const int64_t position = p.positions[token];
    if (position < 0 || position >= p.max_position) {
      return Mismatch(op, "positions", "a position in [0, " + std::to_string(p.max_position) + ")",
                      std::to_string(position) + " at token " + std::to_string(token));
    }
  }
  return ffi::Error::Success();
}

}  // namespace pyxla
