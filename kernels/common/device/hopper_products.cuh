// Products of a warpgroup (wgmma, sm_90a) of 16-bit elements, summed in float: c (+)= a * b, and c's registers as
// hopper.cuh has them. Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/device/hopper.cuh"

namespace pyxla {
namespace hopper {

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
#define PYXLA_PRODUCT(adds, shape, type, names, operands) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " adds ", 0;\n" \
  "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, " operands ";\n}\n"
#define PYXLA_COLUMNS(type, shape, names, registers, adds_name, operands) \
  asm volatile(PYXLA_PRODUCT(adds_name, shape, type, names, operands ", p, 1, 1, 0, 0") \
               : registers \
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)))
#define PYXLA_MULTIPLY_COLUMNS(type) \
  if constexpr (kColumns == 8) \
    PYXLA_COLUMNS(type, "m64n64k16", PYXLA_NAMES32, PYXLA_C32(c, 0), "%34", "%32, %33"); \
  else if constexpr (kColumns == 12) \
    PYXLA_COLUMNS(type, "m64n96k16", PYXLA_NAMES48, PYXLA_C48(c, 0), "%50", "%48, %49"); \
  else if constexpr (kColumns == 14) \
    PYXLA_COLUMNS(type, "m64n112k16", PYXLA_NAMES56, PYXLA_C56(c, 0), "%58", "%56, %57"); \
  else \
    PYXLA_COLUMNS(type, "m64n128k16", PYXLA_NAMES64, PYXLA_C64(c, 0), "%66", "%64, %65")
#define PYXLA_ROWS(type, shape, names, registers, adds_name, operands) \
  asm volatile(PYXLA_PRODUCT(adds_name, shape, type, names, operands ", p, 1, 1, 1") \
               : registers \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1))
#define PYXLA_MULTIPLY_ROWS(type) \
  if constexpr (kCount == 8) \
    PYXLA_ROWS(type, "m64n64k16", PYXLA_NAMES32, PYXLA_C32(c, kFirst), "%37", "{%32, %33, %34, %35}, %36"); \
  else \
    PYXLA_ROWS(type, "m64n128k16", PYXLA_NAMES64, PYXLA_C64(c, kFirst), "%69", "{%64, %65, %66, %67}, %68")
// clang-format on

/** c [64 x n], n = 8 * kColumns, = a [64 x 16] * b [n x 16]^T, added to c if `adds`; both are Matrix::Columns. */
template <typename T, int kColumns>
__device__ inline void MultiplyColumns(Registers<kColumns>& c, uint64_t a, uint64_t b, bool adds) {
  static_assert(kColumns == 8 || kColumns == 12 || kColumns == 14 || kColumns == 16, "64, 96, 112 or 128 columns");
  if constexpr (std::is_same_v<T, __half>) {
    PYXLA_MULTIPLY_COLUMNS("f16");
  } else {
    PYXLA_MULTIPLY_COLUMNS("bf16");
  }
}

/** A thread's registers of a [64 x 16], 16-bit elements by twos. */
using LeftRegisters = uint32_t[4];

/** The kCount * 8 columns of c from 8 * kFirst on += a [64 x 16], in registers, * b [16 x kCount * 8], Matrix::Rows. */
template <typename T, int kFirst, int kCount, int kColumns>
__device__ inline void MultiplyRows(Registers<kColumns>& c, const LeftRegisters& a, uint64_t b) {
  static_assert((kCount == 8 || kCount == 16) && kFirst + kCount <= kColumns, "64 or 128 columns of those there are");
  if constexpr (std::is_same_v<T, __half>) {
    PYXLA_MULTIPLY_ROWS("f16");
  } else {
    PYXLA_MULTIPLY_ROWS("bf16");
  }
}

#undef PYXLA_MULTIPLY_ROWS
#undef PYXLA_ROWS
#undef PYXLA_MULTIPLY_COLUMNS
#undef PYXLA_COLUMNS
#undef PYXLA_PRODUCT
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

}  // namespace hopper
}  // namespace pyxla
