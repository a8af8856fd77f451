// The elements of gated.h on the calling thread.
#pragma once

#include <algorithm>

#include "_gated/gated.h"
#include "pyxla/host/dtype.h"

namespace pyxla {

/** Elements [begin, end) of out. Activation is a function from float to float. */
template <typename Activation>
void GatedElementsOnHost(const GatedParams& params, int64_t begin, int64_t end, const Activation& activation) {
  DispatchFloat(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // From row to row; the piece may begin and end inside one.
    for (int64_t i = begin; i < end;) {
      const int64_t row = i / params.d, row_end = std::min(end, (row + 1) * params.d);
      const T* gate = static_cast<const T*>(params.x) + row * params.d;
      const T* up = gate + params.d;
      T* out = static_cast<T*>(params.out);
      for (; i < row_end; ++i) out[i] = FromFloat<T>(activation(ToFloat(gate[i])) * ToFloat(up[i]));
    }
  });
}

}  // namespace pyxla
