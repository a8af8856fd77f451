// Loads, stores and atomics that the CUDA runtime does not have, and addresses in shared memory as PTX takes them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyxla::ptx {

/** Four registers of 32 bits, PTX's .v4.b32. */
using B32x4 = uint32_t[4];

/** Four registers of float, PTX's .v4.f32. */
using F32x4 = float[4];

/** The address of an object in shared memory, as the instructions here take it. */
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/** Loads 16 bytes of shared memory. */
__device__ inline void ld_shared_v4(B32x4& out, uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

/** Stores 16 bytes to shared memory. */
__device__ inline void st_shared_v4(uint32_t address, const B32x4& words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

/** Stores one word four times: 16 bytes of shared memory. */
__device__ inline void st_shared_v4(uint32_t address, uint32_t word) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(word) : "memory");
}

/** Loads a value that another CTA has released. */
__device__ inline int ld_acquire_gpu(const int* pointer) {
  int value;
  asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}

/** Adds to a value, and releases to other CTAs what was written before. Returns the value before. */
__device__ inline int atom_add_release_gpu(int* pointer, int value) {
  int before;
  asm volatile("atom.add.release.gpu.s32 %0, [%1], %2;" : "=r"(before) : "l"(pointer), "r"(value) : "memory");
  return before;
}

/** Fetches a line of global memory into L2. */
__device__ inline void prefetch_l2(const void* pointer) { asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer)); }

}  // namespace pyxla::ptx
