// XLA's dtype by the name that host and device code share.
#pragma once

#include "pyxla/ffi/ffi.h"
#include "pyxla/float_type.h"

namespace pyxla {

/** The dtype, which must be F32, BF16 or F16 (CheckDtype). */
inline FloatType FloatTypeOf(ffi::DataType dtype) {
  return dtype == ffi::F16 ? FloatType::kFloat16 : dtype == ffi::BF16 ? FloatType::kBFloat16 : FloatType::kFloat32;
}

}  // namespace pyxla
