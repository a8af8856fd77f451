// Barriers: those in shared memory that also count bytes of asynchronous copies (mbarrier, sm_90), and named ones
// (bar.sync). Source: PTX ISA 9.0, "mbarrier".
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyxla::ptx {

/** Makes a barrier. Its phase ends once `count` threads have arrived and the expected bytes are there. */
__device__ inline void mbarrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/** Arrives. */
__device__ inline void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** Arrives, and makes the phase wait for so many bytes of asynchronous copies. */
__device__ inline void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Tries again until the phase is over; `order` is the memory order and scope of the wait, if not the default.
#define PYXLA_MBARRIER_WAIT(order, barrier, parity) \
  asm volatile(                                     \
      "{\n"                                         \
      ".reg .pred done;\n"                          \
      "again:\n"                                    \
      "mbarrier.try_wait.parity" order              \
      ".shared::cta.b64 done, [%0], %1;\n"          \
      "@!done bra again;\n"                         \
      "}\n" ::"r"(barrier),                         \
      "r"(parity)                                   \
      : "memory")

/** Waits for the end of the phase of that parity. The phase before the first counts as over. */
__device__ inline void mbarrier_wait(uint32_t barrier, uint32_t parity) { PYXLA_MBARRIER_WAIT("", barrier, parity); }

/** The same, for a phase that other CTAs of the cluster complete. */
__device__ inline void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  PYXLA_MBARRIER_WAIT(".acquire.cluster", barrier, parity);
}

#undef PYXLA_MBARRIER_WAIT

/** Waits at a named barrier for `threads` threads. */
__device__ inline void bar_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/** Arrives at a named barrier without waiting. */
__device__ inline void bar_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace pyxla::ptx
