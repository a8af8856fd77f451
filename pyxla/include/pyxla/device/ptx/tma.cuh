// Copies of boxes of a tensor by the tensor memory accelerator of sm_90 (TMA); tensor_map.h makes the maps. Coordinates
// are the innermost first, and the bytes count for an mbarrier. Source: PTX ISA 9.0, "Tensor copy".
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyxla::ptx {

/** What threads have written to shared memory becomes visible to TMA and wgmma. */
__device__ inline void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/** The same for global memory. */
__device__ inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/** The policy of lines that are read once: L2 evicts them first. */
__device__ inline uint64_t createpolicy_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

/** Copies the box at (0, 0, c2) to shared memory. */
__device__ inline void tma_load_3d(const CUtensorMap& map, uint32_t to, uint32_t barrier, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {0, 0, %3}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c2)
      : "memory");
}

/** Copies the box at (0, 0, 0, c3, c4). */
__device__ inline void tma_load_5d(const CUtensorMap& map, uint32_t to, uint32_t barrier, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3, %3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(c3), "r"(c4)
      : "memory");
}

/** Copies the box at (0, c1, 0, c3, c4), with a policy for L2. */
__device__ inline void tma_load_5d(const CUtensorMap& map, uint32_t to, uint32_t barrier, int c1, int c3, int c4,
                                   uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {0, %3, 0, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c1), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}

}  // namespace pyxla::ptx
