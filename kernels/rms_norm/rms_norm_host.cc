#include "_rms_norm/rms_norm_host.h"

#include "rms_norm/rms_norm.h"

namespace rms_norm {

PYXLA_MULTIVERSION void RmsNormHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::RmsNormRowsOnHost(params, begin, end);
}

}  // namespace rms_norm
