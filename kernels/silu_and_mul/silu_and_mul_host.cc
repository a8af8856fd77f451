#include <cmath>

#include "_gated/gated_host.h"
#include "silu_and_mul/silu_and_mul.h"

namespace silu_and_mul {

void SiluAndMulHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::GatedElementsOnHost(params, begin, end, [](float v) { return v / (1.0f + std::exp(-v)); });
}

}  // namespace silu_and_mul
