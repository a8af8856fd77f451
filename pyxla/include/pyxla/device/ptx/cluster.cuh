// A cluster of two CTAs (sm_90), each of which writes the other one's shared memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyxla::ptx {

/** The address in the shared memory of the pair's other CTA. */
__device__ inline uint32_t mapa_peer(uint32_t address) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"((blockIdx.x % 2) ^ 1));
  return mapped;
}

/** Arrives at a barrier of another CTA, at an address of mapa_peer. */
__device__ inline void mbarrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** Stores 16 bytes at an address of mapa_peer. */
__device__ inline void st_shared_cluster_v4(uint32_t address, float2 a, float2 b) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a.x), "f"(a.y), "f"(b.x),
               "f"(b.y)
               : "memory");
}

/** Makes initialized barriers visible to the cluster. */
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/** Waits for all threads of the cluster. */
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

}  // namespace pyxla::ptx
