// What the prefill with wgmma has of sm_90a beside common/hopper.cuh: copies of boxes of a paged cache, registers that
// warpgroups give one another, and the shapes of its products. Source: PTX ISA 9.0, "Asynchronous Warpgroup Level
// Matrix Multiply-Accumulate Instructions" and "Asynchronous Data Movement: Tensor copy".
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "common/hopper.cuh"
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

// clang-format off
#define PYXLA_C4(c, j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define PYXLA_C16(c, j) PYXLA_C4(c, j), PYXLA_C4(c, j + 1), PYXLA_C4(c, j + 2), PYXLA_C4(c, j + 3)
#define PYXLA_C32(c, j) PYXLA_C16(c, j), PYXLA_C16(c, j + 4)
#define PYXLA_C64(c, j) PYXLA_C32(c, j), PYXLA_C32(c, j + 8)
#define PYXLA_NAMES32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define PYXLA_NAMES64 PYXLA_NAMES32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PYXLA_PRODUCT(adds, shape, type, names, operands) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " adds ", 0;\n" \
  "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, " operands ";\n}\n"
// clang-format on

// c [64 x 64 or 128] (+)= a [64 x 16] * b [64 or 128 x 16]^T, described by Columns.
#define PYXLA_MULTIPLY_COLUMNS(type)                                                                \
  if constexpr (kColumns == 8)                                                                      \
    asm volatile(PYXLA_PRODUCT("%34", "m64n64k16", type, PYXLA_NAMES32, "%32, %33, p, 1, 1, 0, 0")  \
                 : PYXLA_C32(c, 0)                                                                  \
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)));                                    \
  else                                                                                              \
    asm volatile(PYXLA_PRODUCT("%66", "m64n128k16", type, PYXLA_NAMES64, "%64, %65, p, 1, 1, 0, 0") \
                 : PYXLA_C64(c, 0)                                                                  \
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)))

template <typename T, int kColumns>
__device__ inline void MultiplyColumns(float (&c)[kColumns][4], uint64_t a, uint64_t b, bool adds) {
  static_assert(kColumns == 8 || kColumns == 16, "64 or 128 columns");
  if constexpr (std::is_same_v<T, __half>) {
    PYXLA_MULTIPLY_COLUMNS("f16");
  } else {
    PYXLA_MULTIPLY_COLUMNS("bf16");
  }
}

// The 64 or 128 columns of c from 8 * kFirst on += a [64 x 16], in registers, * b [16 x 64 or 128], described by Rows.
#define PYXLA_MULTIPLY_ROWS(type)                                                                                 \
  if constexpr (kCount == 8)                                                                                      \
    asm volatile(PYXLA_PRODUCT("%37", "m64n64k16", type, PYXLA_NAMES32, "{%32, %33, %34, %35}, %36, p, 1, 1, 1")  \
                 : PYXLA_C32(c, kFirst)                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));                                   \
  else                                                                                                            \
    asm volatile(PYXLA_PRODUCT("%69", "m64n128k16", type, PYXLA_NAMES64, "{%64, %65, %66, %67}, %68, p, 1, 1, 1") \
                 : PYXLA_C64(c, kFirst)                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1))

template <typename T, int kFirst, int kCount, int kColumns>
__device__ inline void MultiplyRows(float (&c)[kColumns][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert((kCount == 8 || kCount == 16) && kFirst + kCount <= kColumns, "64 or 128 columns of those there are");
  if constexpr (std::is_same_v<T, __half>) {
    PYXLA_MULTIPLY_ROWS("f16");
  } else {
    PYXLA_MULTIPLY_ROWS("bf16");
  }
}

#undef PYXLA_MULTIPLY_ROWS
#undef PYXLA_MULTIPLY_COLUMNS
#undef PYXLA_PRODUCT
#undef PYXLA_NAMES64
#undef PYXLA_NAMES32
#undef PYXLA_C64
#undef PYXLA_C32
#undef PYXLA_C16
#undef PYXLA_C4

}  // namespace hopper
}  // namespace paged_attention
