// Tensor cores and asynchronous copies of sm_80 and newer, for the kernels of paged_attention.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace paged_attention {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to shared memory, or sets them to zero without reading.
__device__ inline void CopyOrZero(uint32_t to, const void* from, bool copy) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(copy ? 16 : 0)
               : "memory");
}

// What a copy tells L2 of the lines it reads, as createpolicy encodes it for all of them: to evict them as any others,
// or first. Source: CUTLASS 4, cute/arch/copy_sm90_desc.hpp, CacheHintSm90.
inline constexpr uint64_t kEvictAsAny = 0x1000000000000000, kEvictFirst = 0x12f0000000000000;

__device__ inline void CopyOrZero(uint32_t to, const void* from, bool copy, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(copy ? 16 : 0), "l"(policy)
               : "memory");
#else
  CopyOrZero(to, from, copy);
#endif
}

__device__ inline void SetSixteenBytes(uint32_t to, uint32_t word) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(word) : "memory");
}

__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups of copies are under way.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void LoadMatrices(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

__device__ inline void LoadMatricesTransposed(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// sum [16 x 8] += a [16 x 16] * b [16 x 8]
template <typename T>
__device__ inline void Multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>, "the tensor cores' 16-bit types");
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two elements in a register, `low` in the lower half.
template <typename T>
__device__ inline uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// An 8 x 8 matrix of 16-bit elements, transposed: the lanes hold its rows as LoadMatrices gives them.
__device__ inline uint32_t Transpose(uint32_t matrix) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(matrix));
  return out;
}

// 2^x, zero where that is no normal number.
__device__ inline float Exp2(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// A value that another block has released.
__device__ inline int LoadAcquire(const int* pointer) {
  int value;
  asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}

// The two e4m3 numbers in the lower half of `pair` as two of float16, which holds each exactly; by hand, where the GPU
// has no instruction for it. CUDA's own functions then are so long that compiling them takes a minute.
__host__ __device__ inline uint32_t HalvesOfFloat8ByHand(uint32_t pair) {
  // The same bits mean 2^-8 as much, because float16's exponents are greater by 8. All ones are NaN.
  const uint32_t apart = (pair & 0xff) | (pair & 0xff00) << 8;
  const uint32_t bits = (apart & 0x00800080) << 8 | (apart & 0x007f007f) << 7;
  const uint32_t is_nan = ((apart & 0x007f007f) + 0x00010001) >> 7 & 0x00010001;
  const __half2 scaled = __hmul2(reinterpret_cast<const __half2&>(bits), __float2half2_rn(256));
  return reinterpret_cast<const uint32_t&>(scaled) | is_nan * 0x7e00;
}

__device__ inline uint32_t HalvesOfFloat8(uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return reinterpret_cast<const uint32_t&>(halves);
#else
  return HalvesOfFloat8ByHand(pair);
#endif
}

}  // namespace paged_attention
