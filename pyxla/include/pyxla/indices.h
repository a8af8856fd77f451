// Operands that hold places in another operand, such as positions and slots: int32 or int64, read as int64.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
/** Before a function: host code and device code. */
#define PYXLA_HOST_DEVICE __host__ __device__
#else
#define PYXLA_HOST_DEVICE
#endif

namespace pyxla {

/** `indices[i]`, whichever of the two dtypes there are. */
struct Indices {
  const void* data;
  bool wide;  // int64

  PYXLA_HOST_DEVICE int64_t operator[](int64_t at) const {
    return wide ? static_cast<const int64_t*>(data)[at] : static_cast<const int32_t*>(data)[at];
  }
};

}  // namespace pyxla
