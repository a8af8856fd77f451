// What memory-bound kernels share: 16-byte accesses, and from a FloatType to CUDA's type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "pyxla/float_type.h"

namespace pyxla {

/** A thread moves 16 bytes at a time where every row starts on a 16-byte boundary. */
constexpr int kVectorBytes = 16;

/** `kVectorCount<T>`: how many T a vector of 16 bytes holds. */
template <typename T>
constexpr int kVectorCount = kVectorBytes / sizeof(T);

/** kCount elements that one instruction loads or stores, where they are 16 bytes or fewer. */
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
};

/**
 * Reads a vector that this kernel reads once. The policy is that of torch.compile's reductions: on an H200 kernels that
 * stream through memory gain 1 to 8 % by it (kernels/rms_norm/NOTES.md).
 */
template <typename V>
__device__ inline V LoadOnce(const V* from) {
  if constexpr (sizeof(V) != kVectorBytes) {
    return *from;
  } else {
    union {
      uint32_t words[4];
      V value;
    } loaded;
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(loaded.words[0]), "=r"(loaded.words[1]), "=r"(loaded.words[2]), "=r"(loaded.words[3])
                 : "l"(from), "l"(policy)
                 : "memory");
    return loaded.value;
  }
}

/** Whether the address is a multiple of `bytes`. */
inline bool IsAligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

/** Hands a type to a generic lambda: `using T = typename decltype(tag)::type`. */
template <typename T>
struct CudaType {
  using type = T;
};

/**
 * Calls `body` with CUDA's type of the dtype:
 * `DispatchCuda(dtype, [&](auto tag) { using T = typename decltype(tag)::type; ... })`.
 */
template <typename Body>
cudaError_t DispatchCuda(FloatType dtype, Body&& body) {
  switch (dtype) {
    case FloatType::kFloat32: return body(CudaType<float>());
    case FloatType::kBFloat16: return body(CudaType<__nv_bfloat16>());
    case FloatType::kFloat16: return body(CudaType<__half>());
  }
  return cudaErrorInvalidValue;
}

}  // namespace pyxla
