#include "_rms_norm/rms_norm_host.h"
#include "rms_norm_triton/rms_norm_triton.h"

namespace rms_norm_triton {

PYXLA_MULTIVERSION void RmsNormHost(const pyxla::RmsNormParams& params, int64_t begin, int64_t end) {
  pyxla::RmsNormRowsOnHost(params, begin, end);
}

}  // namespace rms_norm_triton
