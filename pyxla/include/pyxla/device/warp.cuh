// Warps and warpgroups: their sizes, and what the lanes of one compute together.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyxla {

/** Threads of a warp. */
inline constexpr int kWarpSize = 32;

/** Threads of a warpgroup: four warps that issue one wgmma together. */
inline constexpr int kWarpgroupSize = 128;

/** The mask of a warp's lanes in the functions that end in _sync. */
inline constexpr unsigned kAllLanes = 0xffffffff;

/** A value that is the same in all lanes, so that the compiler knows it: it then computes descriptors once per warp. */
__device__ inline uint32_t WarpUniform(uint32_t x) { return __shfl_sync(kAllLanes, x, 0); }

/** The sum of `value` over this lane, `lane`, and the lanes before it. */
template <typename Lane>
__device__ inline int WarpInclusiveSum(int value, Lane lane) {
#pragma unroll
  for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
    const int before = __shfl_up_sync(kAllLanes, value, lanes);
    if (lane >= lanes) value += before;
  }
  return value;
}

}  // namespace pyxla
