#include <algorithm>
#include <cmath>

#include "common/dtype.h"
#include "silu_and_mul/silu_and_mul.h"

namespace silu_and_mul {

void SiluAndMulHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::DispatchFloat(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // From row to row; the piece may begin and end inside one.
    for (int64_t i = begin; i < end;) {
      const int64_t row = i / params.d, row_end = std::min(end, (row + 1) * params.d);
      const T* gate = static_cast<const T*>(params.x) + row * params.d;
      const T* up = gate + params.d;
      T* out = static_cast<T*>(params.out);
      for (; i < row_end; ++i) {
        const float value = pyxla::ToFloat(gate[i]);
        out[i] = pyxla::FromFloat<T>(value / (1.0f + std::exp(-value)) * pyxla::ToFloat(up[i]));
      }
    }
  });
}

}  // namespace silu_and_mul
