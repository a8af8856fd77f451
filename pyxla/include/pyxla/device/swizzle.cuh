// A tile of 16-bit elements in shared memory as TMA writes it and wgmma reads it, in the 128-byte swizzle.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyxla {

/**
 * [rows / 8][columns / 64][8][64], in which the eight 16-byte chunks of each 128 bytes are permuted by the row. The
 * base is a multiple of 1024 bytes.
 */
template <int kColumns>
struct SwizzledTile {
  static constexpr int kGroupBytes = kColumns * 16;  // of eight rows
  static constexpr int kAtomBytes = 1024;            // of 8 x 64
  uint32_t base;

  /** The address of a 16-byte chunk. */
  __device__ uint32_t At(int row, int chunk) const {
    return base + row / 8 * kGroupBytes + chunk / 8 * kAtomBytes + row % 8 * 128 + (chunk ^ row) % 8 * 16;
  }

  /** The descriptor of a K-major operand: all rows by 16 columns from `column`; k runs over columns. */
  __device__ uint64_t KMajor(int column) const {
    return Descriptor(column / 64 * kAtomBytes + column % 64 * 2, 16, kGroupBytes);
  }

  /** The descriptor of an MN-major operand: 16 rows from `row` by columns from `column`; k runs over rows. */
  __device__ uint64_t MnMajor(int row, int column) const {
    return Descriptor(row / 8 * kGroupBytes + column / 64 * kAtomBytes, kAtomBytes, kGroupBytes);
  }

  // Offsets are in units of 16 bytes. Shared memory ends below the 2^18 bytes that the address's 14 bits reach, so that
  // descriptors of one tile differ by a constant.
  __device__ uint64_t Descriptor(uint32_t offset, uint32_t leading, uint32_t stride) const {
    constexpr uint32_t kSwizzle128 = 1u << 30;
    const uint32_t low = base / 16 + (offset / 16 | leading / 16 << 16), high = stride / 16 | kSwizzle128;
    return uint64_t{high} << 32 | low;
  }
};

}  // namespace pyxla
