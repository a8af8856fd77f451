#include "_gated/gated.cuh"
#include "silu_and_mul/silu_and_mul.h"
#include "silu_and_mul/tuning.h"

namespace silu_and_mul {

struct Silu {
  template <typename T>
  static __device__ float Of(float x) {
    return pyxla::TimesSigmoid<T>(x, x);
  }
};

cudaError_t LaunchSiluAndMul(cudaStream_t stream, const Params& params) {
  return pyxla::LaunchGated<Silu, Tuning>(stream, params.dtype, params.x, params.out, params.rows, params.d);
}

}  // namespace silu_and_mul
