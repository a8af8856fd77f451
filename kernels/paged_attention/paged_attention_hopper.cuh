// What the prefill with wgmma has of sm_90a beside common/device/hopper.cuh and hopper_products.cuh: copies of boxes of
// a paged cache, and registers that warpgroups give one another. Source: PTX ISA 9.0, "Asynchronous Data Movement:
// Tensor copy".
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/device/hopper_products.cuh"
#include "paged_attention/paged_attention_device.cuh"
#include "paged_attention/paged_attention_mma.cuh"

namespace paged_attention {
namespace hopper {

using namespace pyxla::hopper;

template <int kRegisters>
__device__ inline void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Copies the box at the coordinates (innermost first) to shared memory; its bytes count for the barrier.
__device__ inline void CopyBox(const CUtensorMap& map, uint32_t to, uint32_t barrier, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3, %3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(c3), "r"(c4)
      : "memory");
}

// What all lanes of a warp have alike, so that the compiler knows it and computes descriptors from it once for the
// warp.
__device__ inline uint32_t Uniform(uint32_t x) { return __shfl_sync(kAllLanes, x, 0); }

}  // namespace hopper
}  // namespace paged_attention
