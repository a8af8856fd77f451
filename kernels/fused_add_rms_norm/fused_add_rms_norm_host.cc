#include "_rms_norm/rms_norm_host.h"
#include "fused_add_rms_norm/fused_add_rms_norm.h"

namespace fused_add_rms_norm {
namespace {

// x + residual, which becomes the residual.
template <typename T>
struct Sum {
  const Params& p;
  int64_t at;

  PYXLA_INLINE void Load(int64_t begin, int64_t count, float* __restrict values) const {
    float addend[pyxla::kRmsNormChunk];
    pyxla::Convert(static_cast<const T*>(p.x) + at + begin, values, count);
    pyxla::Convert(static_cast<const T*>(p.residual) + at + begin, addend, count);
    for (int64_t i = 0; i < count; ++i) values[i] += addend[i];
  }
  PYXLA_INLINE void Keep(int64_t begin, int64_t count, const float* __restrict values) const {
    pyxla::Convert(values, static_cast<T*>(p.residual) + at + begin, count);
  }
};

}  // namespace

PYXLA_MULTIVERSION void FusedAddRmsNormHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::RmsNormRowsOnHost<Sum>(params, begin, end);
}

}  // namespace fused_add_rms_norm
