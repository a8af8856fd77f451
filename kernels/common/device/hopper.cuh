// What sm_90a has and no other, for ops on any of its tensors: barriers in shared memory that count asynchronous
// copies, and products of a warpgroup (four warps) with operands in shared memory. Source: PTX ISA 9.0, "Asynchronous
// Warpgroup Level Matrix Multiply-Accumulate Instructions" and "mbarrier".
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyxla {
namespace hopper {

/** Threads of a warpgroup. */
constexpr int kWarpgroup = 128;

/** A barrier in shared memory, of which a phase ends when `count` threads have arrived and the expected bytes are
 * there. */
__device__ inline void InitBarrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/** Arrives at a barrier made by InitBarrier. */
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** The same; in this phase it also waits for so many bytes of asynchronous copies. */
__device__ inline void ArriveAndExpect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/** Returns once the phase of that parity is over; the one before the first counts as over. */
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

/** What threads have written to shared memory becomes visible to asynchronous copies and products. */
__device__ inline void FenceForAsync() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/** A named barrier of `threads` threads. */
__device__ inline void Sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/** Arrives at a named barrier, and does not wait. */
__device__ inline void ArriveAt(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/**
 * A matrix of 16-bit elements in shared memory, for products and copies: [rows / 8][columns / 64][8][64], in which the
 * eight 16-byte chunks of each 128 bytes are permuted by the row (128-byte swizzle). Bases are multiples of 1024.
 */
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

/** Before the first product of a group, and after registers were written: products run behind the program's back. */
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/** After a group's last product. */
__device__ inline void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/** Until at most kPending groups are under way. */
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/** A thread's registers of a product: four for each eight of its columns. */
template <int kColumns>
using Registers = float[kColumns][4];

/** Keeps the compiler from moving uses of a product's registers across this. */
template <int kColumns>
__device__ inline void Hold(Registers<kColumns>& c) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
    asm volatile("" : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])::"memory");
}

}  // namespace hopper
}  // namespace pyxla
