// Tensor cores of sm_90a, one warpgroup each (wgmma), 16-bit elements summed in float. Source: PTX ISA 9.0,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". The functions warpgroup_* are named as in
// CUTLASS.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace pyxla::ptx {

/** Orders this warpgroup's writes to registers and shared memory before the MMAs that follow (wgmma.fence). */
__device__ inline void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/** Makes a batch of the MMAs issued since the last one. */
__device__ inline void warpgroup_commit_batch() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/** Waits until at most kPending batches are in flight. */
template <int kPending>
__device__ inline void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/** A thread's registers of an accumulator: four for each eight of its columns. */
template <int kColumns>
using Accumulator = float[kColumns][4];

/** Keeps the compiler from moving uses of an accumulator across this: MMAs write it asynchronously. */
template <int kColumns>
__device__ inline void warpgroup_fence_operand(Accumulator<kColumns>& c) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
    asm volatile("" : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])::"memory");
}

/** Gives registers back, down to kRegisters a thread, for the warpgroups that call warpgroup_reg_alloc. */
template <int kRegisters>
__device__ inline void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/** Takes registers that other warpgroups gave back, up to kRegisters a thread. */
template <int kRegisters>
__device__ inline void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// clang-format off
#define PYXLA_C4(c, j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define PYXLA_C16(c, j) PYXLA_C4(c, j), PYXLA_C4(c, j + 1), PYXLA_C4(c, j + 2), PYXLA_C4(c, j + 3)
#define PYXLA_C32(c, j) PYXLA_C16(c, j), PYXLA_C16(c, j + 4)
#define PYXLA_C48(c, j) PYXLA_C32(c, j), PYXLA_C16(c, j + 8)
#define PYXLA_C56(c, j) PYXLA_C48(c, j), PYXLA_C4(c, j + 12), PYXLA_C4(c, j + 13)
#define PYXLA_C64(c, j) PYXLA_C48(c, j), PYXLA_C16(c, j + 12)
#define PYXLA_NAMES32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define PYXLA_NAMES48 PYXLA_NAMES32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define PYXLA_NAMES56 PYXLA_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define PYXLA_NAMES64 PYXLA_NAMES56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define PYXLA_WGMMA(adds, shape, type, names, operands) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " adds ", 0;\n" \
  "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, " operands ";\n}\n"
#define PYXLA_ISSUE_SS(type, shape, names, registers, adds_name, operands) \
  asm volatile(PYXLA_WGMMA(adds_name, shape, type, names, operands ", p, 1, 1, 0, 0") \
               : registers \
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)))
#define PYXLA_WGMMA_SS(type) \
  if constexpr (kColumns == 8) \
    PYXLA_ISSUE_SS(type, "m64n64k16", PYXLA_NAMES32, PYXLA_C32(c, 0), "%34", "%32, %33"); \
  else if constexpr (kColumns == 12) \
    PYXLA_ISSUE_SS(type, "m64n96k16", PYXLA_NAMES48, PYXLA_C48(c, 0), "%50", "%48, %49"); \
  else if constexpr (kColumns == 14) \
    PYXLA_ISSUE_SS(type, "m64n112k16", PYXLA_NAMES56, PYXLA_C56(c, 0), "%58", "%56, %57"); \
  else \
    PYXLA_ISSUE_SS(type, "m64n128k16", PYXLA_NAMES64, PYXLA_C64(c, 0), "%66", "%64, %65")
#define PYXLA_ISSUE_RS(type, shape, names, registers, adds_name, operands) \
  asm volatile(PYXLA_WGMMA(adds_name, shape, type, names, operands ", p, 1, 1, 1") \
               : registers \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1))
#define PYXLA_WGMMA_RS(type) \
  if constexpr (kCount == 8) \
    PYXLA_ISSUE_RS(type, "m64n64k16", PYXLA_NAMES32, PYXLA_C32(c, kFirst), "%37", "{%32, %33, %34, %35}, %36"); \
  else \
    PYXLA_ISSUE_RS(type, "m64n128k16", PYXLA_NAMES64, PYXLA_C64(c, kFirst), "%69", "{%64, %65, %66, %67}, %68")
// clang-format on

/**
 * c [64 x n] = a [64 x 16] * b [n x 16]^T, n = 8 * kColumns, added to c if `adds`; a and b are in shared memory,
 * SwizzledTile::KMajor.
 */
template <typename T, int kColumns>
__device__ inline void wgmma_ss(Accumulator<kColumns>& c, uint64_t a, uint64_t b, bool adds) {
  static_assert(kColumns == 8 || kColumns == 12 || kColumns == 14 || kColumns == 16, "64, 96, 112 or 128 columns");
  if constexpr (std::is_same_v<T, __half>) {
    PYXLA_WGMMA_SS("f16");
  } else {
    PYXLA_WGMMA_SS("bf16");
  }
}

/** A thread's registers of a [64 x 16], two 16-bit elements each. */
using AFragment = uint32_t[4];

/**
 * The kCount * 8 columns of c from 8 * kFirst on += a [64 x 16] * b [16 x kCount * 8]; a is in registers, b in shared
 * memory, SwizzledTile::MnMajor.
 */
template <typename T, int kFirst, int kCount, int kColumns>
__device__ inline void wgmma_rs(Accumulator<kColumns>& c, const AFragment& a, uint64_t b) {
  static_assert((kCount == 8 || kCount == 16) && kFirst + kCount <= kColumns, "64 or 128 columns of those there are");
  if constexpr (std::is_same_v<T, __half>) {
    PYXLA_WGMMA_RS("f16");
  } else {
    PYXLA_WGMMA_RS("bf16");
  }
}

#undef PYXLA_WGMMA_RS
#undef PYXLA_ISSUE_RS
#undef PYXLA_WGMMA_SS
#undef PYXLA_ISSUE_SS
#undef PYXLA_WGMMA
#undef PYXLA_NAMES64
#undef PYXLA_NAMES56
#undef PYXLA_NAMES48
#undef PYXLA_NAMES32
#undef PYXLA_C64
#undef PYXLA_C56
#undef PYXLA_C48
#undef PYXLA_C32
#undef PYXLA_C16
#undef PYXLA_C4

}  // namespace pyxla::ptx
