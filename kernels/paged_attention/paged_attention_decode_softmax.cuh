// A warp's part of the decode kernel's softmax. Logits are keys times query (16 keys x 8 rows), sums are values times
// weights (16 columns x 8 rows), so that the rows are the narrow side of the tensor cores' products.
#pragma once

#include "paged_attention/paged_attention_decode_query.cuh"

namespace paged_attention::decode {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// The sums' columns are lane / 4 and the eighth behind it of each sixteen; of float8 values lane / 4 * 2 and the next
// one.
template <typename Shape>
struct State {
  float max[Shape::kTiles][2], weight[Shape::kTiles][2], sums[Shape::kTiles][Shape::kDim / 16][4];
};

// The addresses that a lane gives for four matrices of 16 keys and two vectors, in the order in which a product takes
// them: of keys, eight keys, the others, and both of the next vector; of values, whose transposed it takes, eight keys,
// the same of the next vector, and both of the other keys. At(vector): for vectors `vector` and `vector` + 1.
template <typename Shape, bool kIsTransposed>
class Addresses {
 public:
  __device__ explicit Addresses(uint32_t rows) {
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

// logits[tile][i]: of keys i * 16 + lane / 4 and the eighth behind it, for the lane's two rows. In several sums,
// because a product waits for the one before it in its sum, and the warp with it.
template <typename Shape>
__device__ inline void MultiplyKeys(const Query<Shape>& q, const Addresses<Shape, false>& keys,
                                    float (&logits)[Shape::kTiles][Shape::kKeys / 16][4]) {
  constexpr int kSums = Shape::kDim == 256 ? 2 : 4;
#pragma unroll
  for (int i = 0; i < Shape::kKeys / 16; ++i) {
    float sums[kSums][Shape::kTiles][4] = {};
#pragma unroll
    for (int vector = 0; vector < Shape::kVectors; vector += 2) {
      uint32_t k[4];
      LoadMatrices(k, keys.At(vector) + i * 16 * Shape::kRowBytes);
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        const auto& values = q.values[tile];
        if constexpr (Shape::kIsFloat8) {
          // A lane has four neighbours of a vector: two for each half of the product's sixteen columns.
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const uint32_t a[4] = {HalvesOfFloat8(k[2 * j] & 0xffff), HalvesOfFloat8(k[2 * j + 1] & 0xffff),
                                   HalvesOfFloat8(k[2 * j] >> 16), HalvesOfFloat8(k[2 * j + 1] >> 16)};
            Multiply<__half>(sums[(vector + j) % kSums][tile], a, values[vector + j][0], values[vector + j][1]);
          }
        } else {
          const int step = vector / 2;
          Multiply<typename Shape::T>(sums[step % kSums][tile], k, values[step][0], values[step][1]);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        logits[tile][i][j] = sums[0][tile][j] + sums[1][tile][j];
        if constexpr (kSums == 4) logits[tile][i][j] += sums[2][tile][j] + sums[3][tile][j];
      }
    }
  }
}

// tanh to a few units in the last place.
__device__ inline float Tanh(float x) {
  const float y = x * x;
  const float small = x + x * y * (-1.0f / 3 + y * (2.0f / 15 + y * (-17.0f / 315 + y * (62.0f / 2835))));
  const float large = 1 - __fdividef(2, 1 + Exp2(fminf(2 * kLog2E * fabsf(x), 120.0f)));
  return x != x ? x : fabsf(x) < 0.3f ? small : copysignf(large, x);
}

// Scale, cap, bias and mask; times log2(e).
template <typename Shape>
__device__ inline void FinishLogits(const Params& p, const Plan& plan, const Item& item, const Query<Shape>& q,
                                    int first_key, bool is_masked,
                                    float (&logits)[Shape::kTiles][Shape::kKeys / 16][4]) {
  const int lane = Lane();
  const bool is_plain = p.soft_cap == 0 && p.alibi_slopes == nullptr;
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    if (is_plain) {
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 4; ++i) logits[tile][i / 4][i % 4] *= q.factor[tile][i % 2] * kLog2E;
      if (!is_masked) continue;
    }
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const Row row = RowOf(plan, item, tile * 8 + lane % 4 * 2 + column);
      const int position = item.position + row.token, begin = position - plan.window + 1;
      const int end = min(position + 1, item.end);
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 8; ++i) {
        const int key = first_key + i * 8 + lane / 4;
        float& logit = logits[tile][i / 2][i % 2 * 2 + column];
        if (!is_plain) {
          logit *= q.factor[tile][column];
          if (p.soft_cap > 0) logit = p.soft_cap * Tanh(logit * plan.inverse_cap);
          logit = (logit + q.slope[tile][column] * static_cast<float>(key - position)) * kLog2E;
        }
        if (key < begin || key >= end) logit = -INFINITY;
      }
    }
  }
}

// sums += values * weights. With a mask, a key's values are zero in it unless the token sees the key, and only the
// token's rows change: nothing is multiplied by a weight of zero.
template <typename Shape, bool kHasMask>
__device__ inline void AddValues(const Addresses<Shape, true>& values,
                                 const uint32_t (&weights)[Shape::kTiles][Shape::kKeys / 16][2],
                                 const uint32_t (&masks)[Shape::kKeys / 16][2],
                                 const bool (&is_token)[Shape::kTiles][2], State<Shape>& state) {
#pragma unroll
  for (int i = 0; i < Shape::kKeys / 16; ++i) {
#pragma unroll
    for (int vector = 0; vector < Shape::kVectors; vector += 2) {
      uint32_t v[4];
      LoadMatricesTransposed(v, values.At(vector) + i * 16 * Shape::kRowBytes);
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
            a[2 * half] = HalvesOfFloat8(__byte_perm(v[2 * half + j], 0, 0x4420));
            a[2 * half + 1] = HalvesOfFloat8(__byte_perm(v[2 * half + j], 0, 0x4431));
          }
        }
        const int sixteen = Shape::kIsFloat8 ? vector + j : vector / 2;
#pragma unroll
        for (int tile = 0; tile < Shape::kTiles; ++tile) {
          float (&sums)[4] = state.sums[tile][sixteen];
          float sum[4] = {sums[0], sums[1], sums[2], sums[3]};
          Multiply<std::conditional_t<Shape::kIsFloat8, __half, typename Shape::T>>(sum, a, weights[tile][i][0],
                                                                                    weights[tile][i][1]);
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[k] = !kHasMask || is_token[tile][k % 2] ? sum[k] : sums[k];
        }
      }
    }
  }
}

// 2^(logit - max), where a maximum of minus infinity stands for no key so far.
__device__ inline float Weight(float logit, float max) { return Exp2(logit - (max == -INFINITY ? 0.0f : max)); }

// How far, in powers of two, a row's logits may be above what its weights are relative to.
inline constexpr float kSlack = 8;

// What of an item a slab's keys are compared with: where the item ends, and between which keys all of its tokens see
// all.
struct Bounds {
  int end, all_begin, all_end;
};

__device__ inline Bounds BoundsOf(const Plan& plan, const Item& item) {
  const int first = plan.group_divider.Quotient(item.row);
  const int last = plan.group_divider.Quotient(item.row + item.rows - 1);
  return {item.end, item.position + last - plan.window + 1, item.position + first + 1};
}

// Adds a stage's keys and values to the running softmax.
template <typename Shape>
__device__ inline void AddStage(const Params& p, const Plan& plan, const Item& item, const Bounds& bounds,
                                const Query<Shape>& q, uint32_t stage, int first_key, State<Shape>& state) {
  using Factor = std::conditional_t<Shape::kIsFloat8, __half, typename Shape::T>;
  const int lane = Lane(), past = first_key + Shape::kKeys;
  const bool tokens_differ = first_key < bounds.all_begin || min(past, bounds.end) > bounds.all_end;

  float logits[Shape::kTiles][Shape::kKeys / 16][4];
  MultiplyKeys<Shape>(q, Addresses<Shape, false>(stage), logits);
  FinishLogits<Shape>(p, plan, item, q, first_key, tokens_differ || past > bounds.end, logits);

  // The largest logit of each row, of this lane's. The sums are scaled anew only for one that is much larger than those
  // before; only then do the lanes look for the largest one of all.
  float max[Shape::kTiles][2];
  bool is_larger = false;
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      max[tile][row] = logits[tile][0][row];
#pragma unroll
      for (int i = 1; i < Shape::kKeys / 8; ++i) {
        max[tile][row] = fmaxf(max[tile][row], logits[tile][i / 2][i % 2 * 2 + row]);
      }
      is_larger = is_larger || max[tile][row] > state.max[tile][row] + kSlack;
    }
  }
  if (__any_sync(kAllLanes, is_larger)) {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int lanes = 4; lanes < kWarpSize; lanes *= 2) {
          max[tile][row] = fmaxf(max[tile][row], __shfl_xor_sync(kAllLanes, max[tile][row], lanes));
        }
        if (!(max[tile][row] > state.max[tile][row] + kSlack)) continue;
        const float scale = Weight(state.max[tile][row], max[tile][row]);
        state.max[tile][row] = max[tile][row];
        state.weight[tile][row] *= scale;
#pragma unroll
        for (int i = 0; i < Shape::kDim / 16; ++i) {
          state.sums[tile][i][row] *= scale, state.sums[tile][i][2 + row] *= scale;
        }
      }
    }
  }

  // The weights, two rows of a key in a register, and by a transposition two keys of a row.
  uint32_t weights[Shape::kTiles][Shape::kKeys / 16][2];
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 8; ++i) {
      const float first_weight = Weight(logits[tile][i / 2][i % 2 * 2], state.max[tile][0]);
      const float second_weight = Weight(logits[tile][i / 2][i % 2 * 2 + 1], state.max[tile][1]);
      state.weight[tile][0] += first_weight;
      state.weight[tile][1] += second_weight;
      weights[tile][i / 2][i % 2] = Transpose(Pack<Factor>(first_weight, second_weight));
    }
  }

  const Addresses<Shape, true> values(stage + Shape::kValues);
  uint32_t masks[Shape::kKeys / 16][2] = {};
  bool is_token[Shape::kTiles][2] = {};
  if (!tokens_differ) {
    AddValues<Shape, false>(values, weights, masks, is_token, state);
    return;
  }
  const int first = plan.group_divider.Quotient(item.row);
  const int last = plan.group_divider.Quotient(item.row + item.rows - 1);
#pragma unroll 1
  for (int token = first; token <= last; ++token) {
    const int begin = item.position + token - plan.window + 1, end = item.position + token + 1;
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 8; ++i) {
      const int key = first_key + i * 8 + lane % 4 * 2;
      masks[i / 2][i % 2] =
          (begin <= key && key < end ? 0xffff : 0) | (begin <= key + 1 && key + 1 < end ? 0xffff0000 : 0);
    }
#pragma unroll
    for (int i = 0; i < Shape::kRows / 4; ++i) {
      is_token[i / 2][i % 2] = RowOf(plan, item, i / 2 * 8 + lane % 4 * 2 + i % 2).token == token;
    }
    AddValues<Shape, true>(values, weights, masks, is_token, state);
  }
}

// A warp's softmax to shared memory: maxima and sums of weights, [kRows] each, and the sums if it had any key.
template <typename Shape>
__device__ inline void StoreState(const State<Shape>& state, int rows, bool has_sums, float* maxima, float* weights,
                                  float* sums) {
  const int lane = Lane();
#pragma unroll
  for (int i = 0; i < Shape::kRows / 4; ++i) {
    const int tile = i / 2, column = i % 2, row = tile * 8 + lane % 4 * 2 + column;
    float weight = state.weight[tile][column];
#pragma unroll
    for (int lanes = 4; lanes < kWarpSize; lanes *= 2) weight += __shfl_xor_sync(kAllLanes, weight, lanes);
    if (row >= rows) continue;
    if (lane < 4) maxima[row] = state.max[tile][column], weights[row] = weight;
    if (!has_sums) continue;
#pragma unroll
    for (int j = 0; j < Shape::kDim / 16; ++j) {
      const int first = j * 16 + (Shape::kIsFloat8 ? lane / 4 * 2 : lane / 4);
      sums[Shape::SumOffset(row, first)] = state.sums[tile][j][column];
      sums[Shape::SumOffset(row, first + (Shape::kIsFloat8 ? 1 : 8))] = state.sums[tile][j][2 + column];
    }
  }
}

}  // namespace paged_attention::decode
