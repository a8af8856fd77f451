// Matrices of 8 x 8 16-bit elements, from shared memory to the registers of a warp (ldmatrix, movmatrix).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "pyxla/device/ptx/memory.cuh"

namespace pyxla::ptx {

/** Loads four matrices; lane i gives the address of row i % 8 of matrix i / 8. */
__device__ inline void ldmatrix_x4(B32x4& out, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

/** Loads four matrices, each transposed. */
__device__ inline void ldmatrix_x4_trans(B32x4& out, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

/** Transposes a matrix in the registers of a warp. */
__device__ inline uint32_t movmatrix_trans(uint32_t matrix) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(matrix));
  return out;
}

}  // namespace pyxla::ptx
