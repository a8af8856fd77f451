// c [64 x n] (+)= a [64 x 16] * b [n x 16]^T of a warpgroup, a and b in shared memory, for the widths of this op's
// tiles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "attention_to_qkv/attention_to_qkv.h"
#include "common/hopper.cuh"

namespace attention_to_qkv {

using namespace pyxla::hopper;

// clang-format off
#define PYXLA_C8(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3]), \
                    "+f"(c[j + 1][0]), "+f"(c[j + 1][1]), "+f"(c[j + 1][2]), "+f"(c[j + 1][3])
#define PYXLA_C32 PYXLA_C8(0), PYXLA_C8(2), PYXLA_C8(4), PYXLA_C8(6)
#define PYXLA_C48 PYXLA_C32, PYXLA_C8(8), PYXLA_C8(10)
#define PYXLA_C56 PYXLA_C48, PYXLA_C8(12)
#define PYXLA_NAMES32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define PYXLA_NAMES48 PYXLA_NAMES32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define PYXLA_NAMES56 PYXLA_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define PYXLA_MULTIPLY(shape, type, names, registers, x, y, z)                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" z ", 0;\n"                                        \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, %" x ", %" y \
               ", p, 1, 1, 0, 0;\n}\n"                                                                \
               : registers                                                                             \
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)))
// clang-format on

template <typename T, int kColumns>
__device__ inline void MultiplyAdd(float (&c)[kColumns][4], uint64_t a, uint64_t b, bool adds) {
  static_assert(kColumns == 8 || kColumns == 12 || kColumns == 14, "64, 96 or 112 columns");
  constexpr bool kHalf = std::is_same_v<T, __half>;
  if constexpr (kHalf && kColumns == 8) PYXLA_MULTIPLY("m64n64k16", "f16", PYXLA_NAMES32, PYXLA_C32, "32", "33", "34");
  if constexpr (!kHalf && kColumns == 8)
    PYXLA_MULTIPLY("m64n64k16", "bf16", PYXLA_NAMES32, PYXLA_C32, "32", "33", "34");
  if constexpr (kHalf && kColumns == 12) PYXLA_MULTIPLY("m64n96k16", "f16", PYXLA_NAMES48, PYXLA_C48, "48", "49", "50");
  if constexpr (!kHalf && kColumns == 12)
    PYXLA_MULTIPLY("m64n96k16", "bf16", PYXLA_NAMES48, PYXLA_C48, "48", "49", "50");
  if constexpr (kHalf && kColumns == 14)
    PYXLA_MULTIPLY("m64n112k16", "f16", PYXLA_NAMES56, PYXLA_C56, "56", "57", "58");
  if constexpr (!kHalf && kColumns == 14)
    PYXLA_MULTIPLY("m64n112k16", "bf16", PYXLA_NAMES56, PYXLA_C56, "56", "57", "58");
}

#undef PYXLA_MULTIPLY
#undef PYXLA_NAMES56
#undef PYXLA_NAMES48
#undef PYXLA_NAMES32
#undef PYXLA_C56
#undef PYXLA_C48
#undef PYXLA_C32
#undef PYXLA_C8

}  // namespace attention_to_qkv
