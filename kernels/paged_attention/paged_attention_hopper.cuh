// What sm_90a has and no other: tensor maps' asynchronous copies, barriers in shared memory that count them, products
// of a warpgroup (four warps) with operands in shared memory. Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions" and "Asynchronous Data Movement: Tensor copy".
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "paged_attention/paged_attention_device.cuh"
#include "paged_attention/paged_attention_mma.cuh"

namespace paged_attention {
namespace hopper {

constexpr int kWarpgroup = 128;  // threads

// Barriers in shared memory. A phase ends when `count` threads have arrived and the expected bytes are there; Wait
// returns once the phase of that parity is over, and the one before the first counts as over.
__device__ inline void InitBarrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void ArriveAndExpect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void Wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// What threads have written to shared memory becomes visible to asynchronous copies and products.
__device__ inline void FenceForAsync() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A named barrier of `threads` threads.
__device__ inline void Sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ inline void ArriveAt(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

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

// Matrices of 16-bit elements in shared memory, for products and copies: [rows / 8][columns / 64][8][64], in which the
// eight 16-byte chunks of each 128 bytes are permuted by the row (128-byte swizzle). Bases are multiples of 1024.
template <int kColumns>
struct Matrix {
  static constexpr int kGroupBytes = kColumns * 16;  // of eight rows
  static constexpr int kBlockBytes = 1024;           // of 8 x 64
  uint32_t base;

  __device__ uint32_t At(int row, int chunk) const {
    return base + row / 8 * kGroupBytes + chunk / 8 * kBlockBytes + row % 8 * 128 + (chunk ^ row) % 8 * 16;
  }

  // Operand descriptors. Rows by 16 columns from `column`, the product running over columns.
  __device__ uint64_t Columns(int column) const {
    return Descriptor(column / 64 * kBlockBytes + column % 64 * 2, 16, kGroupBytes);
  }

  // 16 rows from `row` by columns from `column`, the product running over rows.
  __device__ uint64_t Rows(int row, int column) const {
    return Descriptor(row / 8 * kGroupBytes + column / 64 * kBlockBytes, kBlockBytes, kGroupBytes);
  }

  // In units of 16 bytes. Shared memory ends below the 2^18 bytes that the address's 14 bits reach, so that descriptors
  // of one matrix differ by a constant.
  __device__ uint64_t Descriptor(uint32_t offset, uint32_t leading, uint32_t stride) const {
    constexpr uint32_t kSwizzle128 = 1u << 30;
    const uint32_t low = base / 16 + (offset / 16 | leading / 16 << 16), high = stride / 16 | kSwizzle128;
    return uint64_t{high} << 32 | low;
  }
};

// Products run behind the program's back: Begin before the first of a group and after registers were written, Commit
// after the last, WaitForProducts<n> until at most n groups are under way. Hold keeps the compiler from moving uses of
// registers across that.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

template <int kColumns>
__device__ inline void Hold(float (&c)[kColumns][4]) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
    asm volatile("" : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])::"memory");
}

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
