// Asynchronous copies of sm_80 and newer, 16 bytes a thread (cp.async).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyxla::ptx {

/**
 * The cache policy of a copy, as createpolicy encodes it: L2 evicts the lines that it reads normally, or first.
 * Source: CUTLASS 4, cute/arch/copy_sm90_desc.hpp, CacheHintSm90.
 */
inline constexpr uint64_t kEvictNormal = 0x1000000000000000, kEvictFirst = 0x12f0000000000000;

/** Copies 16 bytes to shared memory, or, unless `copy`, sets them to zero without reading. */
__device__ inline void cp_async_zfill(uint32_t to, const void* from, bool copy) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(copy ? 16 : 0)
               : "memory");
}

/** The same, with a policy that sm_90 and newer follow. */
__device__ inline void cp_async_zfill(uint32_t to, const void* from, bool copy, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(copy ? 16 : 0), "l"(policy)
               : "memory");
#else
  cp_async_zfill(to, from, copy);
#endif
}

/** Makes a group of the copies that this thread has started since the last one. */
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/** Waits until at most kPending of this thread's groups are in flight. */
template <int kPending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace pyxla::ptx
