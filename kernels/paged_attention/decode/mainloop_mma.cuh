// The MMAs of a warp of the decode kernel: S = K Q^T (16 keys x 8 rows) and O += V^T P (16 columns x 8 rows), so that
// the rows are the narrow side of the MMA.
#pragma once

#include "paged_attention/decode/query.cuh"
#include "pyxla/device/ptx/ldmatrix.cuh"
#include "pyxla/device/ptx/mma.cuh"

namespace paged_attention::decode {

// Of each 16 columns of O a lane has lane / 4 and lane / 4 + 8; with float8 values lane / 4 * 2 and the next one.
template <typename Shape>
struct SoftmaxState {
  float m[Shape::kTiles][2], l[Shape::kTiles][2], o[Shape::kTiles][Shape::kDim / 16][4];
};

// The addresses of a lane for ldmatrix_x4: four matrices, of 16 keys and two vectors, in the order of an MMA's operand.
// K: keys 0 to 7, keys 8 to 15, and both of the next vector. V, transposed: keys 0 to 7, the same of the next vector,
// and both of keys 8 to 15. At(vector): for vectors `vector` and `vector` + 1.
template <typename Shape, bool kIsTransposed>
class LdmatrixAddresses {
 public:
  __device__ explicit LdmatrixAddresses(uint32_t rows) {
    const int lane = Lane(), first = lane / 8 % 2, second = lane / 16;
    const int offset = Shape::Offset((kIsTransposed ? second : first) * 8 + lane % 8, kIsTransposed ? first : second);
#pragma unroll
    for (int i = 0; i < kCount; ++i) at_[i] = rows + (offset ^ i * 32);
  }
  __device__ uint32_t At(int vector) const { return at_[vector / 2 % kCount] + vector / 8 * 128; }

 private:
  static constexpr int kCount = Shape::kVectors >= 8 ? 4 : 2;
  uint32_t at_[kCount];
};

// S = K Q^T; s[tile][i] is of keys i * 16 + lane / 4 and that + 8, for the lane's two rows. In several accumulators,
// because an MMA waits for the one before it in its accumulator, and the warp with it.
template <typename Shape>
__device__ inline void GemmQk(const Query<Shape>& q, const LdmatrixAddresses<Shape, false>& keys,
                              float (&s)[Shape::kTiles][Shape::kKeys / 16][4]) {
  constexpr int kSums = Shape::kDim == 256 ? 2 : 4;
#pragma unroll
  for (int i = 0; i < Shape::kKeys / 16; ++i) {
    float sums[kSums][Shape::kTiles][4] = {};
#pragma unroll
    for (int vector = 0; vector < Shape::kVectors; vector += 2) {
      uint32_t k[4];
      ldmatrix_x4(k, keys.At(vector) + i * 16 * Shape::kRowBytes);
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        const auto& values = q.values[tile];
        if constexpr (Shape::kIsFloat8) {
          // A lane has four neighbours of a vector: two for each half of the MMA's sixteen columns.
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const uint32_t a[4] = {E4m3x2ToHalf2(k[2 * j] & 0xffff), E4m3x2ToHalf2(k[2 * j + 1] & 0xffff),
                                   E4m3x2ToHalf2(k[2 * j] >> 16), E4m3x2ToHalf2(k[2 * j + 1] >> 16)};
            mma_m16n8k16<__half>(sums[(vector + j) % kSums][tile], a, values[vector + j][0], values[vector + j][1]);
          }
        } else {
          const int step = vector / 2;
          mma_m16n8k16<typename Shape::T>(sums[step % kSums][tile], k, values[step][0], values[step][1]);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[tile][i][j] = sums[0][tile][j] + sums[1][tile][j];
        if constexpr (kSums == 4) s[tile][i][j] += sums[2][tile][j] + sums[3][tile][j];
      }
    }
  }
}

// O += V^T P. With a mask, the values of keys that the token does not see are zero, and only the token's rows change:
// no value is multiplied by P = 0.
template <typename Shape, bool kHasMask, typename State>
__device__ inline void GemmPv(const LdmatrixAddresses<Shape, true>& values,
                              const uint32_t (&p_frag)[Shape::kTiles][Shape::kKeys / 16][2],
                              const uint32_t (&masks)[Shape::kKeys / 16][2], const bool (&is_token)[Shape::kTiles][2],
                              State& state) {
#pragma unroll
  for (int i = 0; i < Shape::kKeys / 16; ++i) {
#pragma unroll
    for (int vector = 0; vector < Shape::kVectors; vector += 2) {
      uint32_t v[4];
      ldmatrix_x4_trans(v, values.At(vector) + i * 16 * Shape::kRowBytes);
      if constexpr (kHasMask) {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] &= masks[i][j / 2];
      }
#pragma unroll
      for (int j = 0; j < (Shape::kIsFloat8 ? 2 : 1); ++j) {
        uint32_t a[4] = {v[0], v[1], v[2], v[3]};
        if constexpr (Shape::kIsFloat8) {
          // A 16-bit element is two columns of a key: the even ones make the upper half, the odd ones the lower.
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            a[2 * half] = E4m3x2ToHalf2(__byte_perm(v[2 * half + j], 0, 0x4420));
            a[2 * half + 1] = E4m3x2ToHalf2(__byte_perm(v[2 * half + j], 0, 0x4431));
          }
        }
        const int sixteen = Shape::kIsFloat8 ? vector + j : vector / 2;
#pragma unroll
        for (int tile = 0; tile < Shape::kTiles; ++tile) {
          float (&sums)[4] = state.o[tile][sixteen];
          float sum[4] = {sums[0], sums[1], sums[2], sums[3]};
          mma_m16n8k16<std::conditional_t<Shape::kIsFloat8, __half, typename Shape::T>>(sum, a, p_frag[tile][i][0],
                                                                                        p_frag[tile][i][1]);
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[k] = !kHasMask || is_token[tile][k % 2] ? sum[k] : sums[k];
        }
      }
    }
  }
}

}  // namespace paged_attention::decode
