// The running softmax of a warp: from S to P, and (m, l, O) over its KV tiles.
#pragma once

#include "paged_attention/decode/mainloop_mma.cuh"
#include "paged_attention/splits.cuh"

namespace paged_attention::decode {

// Scale, cap, bias and mask; times log2(e).
template <typename Shape>
__device__ inline void FinishScores(const Params& p, const Plan& plan, const WorkTile& work, const Query<Shape>& q,
                                    int first_key, bool is_masked, float (&s)[Shape::kTiles][Shape::kKeys / 16][4]) {
  const int lane = Lane();
  const bool is_plain = p.soft_cap == 0 && p.alibi_slopes == nullptr;
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    if (is_plain) {
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 4; ++i) s[tile][i / 4][i % 4] *= q.Factor(p, tile, i % 2) * kLog2E;
      if (!is_masked) continue;
    }
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const Row row = RowOf(plan, work, Shape::FirstRow() + tile * 8 + lane % 4 * 2 + column);
      const int position = work.position + row.token, begin = position - plan.window + 1;
      const int end = min(position + 1, work.keys.end);
      const float slope = p.alibi_slopes == nullptr ? 0.0f : p.alibi_slopes[row.head];
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 8; ++i) {
        const int key = first_key + i * 8 + lane / 4;
        float& score = s[tile][i / 2][i % 2 * 2 + column];
        if (!is_plain) {
          score *= q.Factor(p, tile, column);
          if (p.soft_cap > 0) score = p.soft_cap * Tanh(score * plan.inverse_cap);
          score = (score + slope * static_cast<float>(key - position)) * kLog2E;
        }
        if (key < begin || key >= end) score = -INFINITY;
      }
    }
  }
}

// How far, in powers of two, a row's S may exceed its m before O is rescaled.
inline constexpr float kSlack = 8;

// Whether all values of a KV tile are finite: then P = 0 is enough for keys that a token does not see.
template <typename Shape>
__device__ inline bool AreFinite(const LdmatrixAddresses<Shape, true>& values) {
  using T = typename Shape::T;
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  Pair sum = {};  // of each value times zero: NaN, if one is not finite
  uint32_t nans = 0;
#pragma unroll
  for (int i = 0; i < Shape::kKeys / 16; ++i) {
#pragma unroll
    for (int vector = 0; vector < Shape::kVectors; vector += 2) {
      uint32_t v[4];
      ldmatrix_x4_trans(v, values.At(vector) + i * 16 * Shape::kRowBytes);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (Shape::kIsFloat8) {
          nans |= ((v[j] & 0x7f7f7f7f) + 0x01010101) & 0x80808080;  // e4m3fn has no infinity, and two NaNs
        } else {
          sum = __hfma2(reinterpret_cast<const Pair&>(v[j]), Pair{}, sum);
        }
      }
    }
  }
  return __all_sync(kAllLanes, nans == 0 && static_cast<float>(sum.x) == 0 && static_cast<float>(sum.y) == 0);
}

// Whether the tokens of the work tile see different keys of a KV tile.
template <typename Shape>
__device__ inline bool TokensDiffer(const KeyRange& keys, int first_key) {
  return first_key < keys.all_begin || min(first_key + Shape::kKeys, keys.end) > keys.all_end;
}

// S of a KV tile, from its keys in shared memory.
template <typename Shape>
__device__ inline void ComputeScores(const Params& p, const Plan& plan, const WorkTile& work, const KeyRange& keys,
                                     const Query<Shape>& q, uint32_t keys_at, int first_key,
                                     float (&s)[Shape::kTiles][Shape::kKeys / 16][4]) {
  const bool is_masked = TokensDiffer<Shape>(keys, first_key) || first_key + Shape::kKeys > keys.end;
  GemmQk<Shape>(q, LdmatrixAddresses<Shape, false>(keys_at), s);
  FinishScores<Shape>(p, plan, work, q, first_key, is_masked, s);
}

// The largest S of each row, of this lane's; whether one is much larger than m.
template <typename Shape, typename State>
__device__ inline bool FindMaxima(const float (&s)[Shape::kTiles][Shape::kKeys / 16][4], const State& state,
                                  float (&max)[Shape::kTiles][2]) {
  bool is_larger = false;
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      max[tile][row] = s[tile][0][row];
#pragma unroll
      for (int i = 1; i < Shape::kKeys / 8; ++i) {
        max[tile][row] = fmaxf(max[tile][row], s[tile][i / 2][i % 2 * 2 + row]);
      }
      is_larger = is_larger || max[tile][row] > state.m[tile][row] + kSlack;
    }
  }
  return is_larger;
}

// Adds P V of a KV tile, and P to l.
template <typename Shape, typename State>
__device__ inline void AddProbabilities(const Plan& plan, const WorkTile& work, bool tokens_differ, uint32_t values_at,
                                        int first_key, const float (&s)[Shape::kTiles][Shape::kKeys / 16][4],
                                        State& state) {
  using Factor = std::conditional_t<Shape::kIsFloat8, __half, typename Shape::T>;
  const int lane = Lane();

  // P: two rows of a key in a register, and after a transposition two keys of a row.
  uint32_t p_frag[Shape::kTiles][Shape::kKeys / 16][2];
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 8; ++i) {
      const float p0 = Exp2Minus(s[tile][i / 2][i % 2 * 2], state.m[tile][0]);
      const float p1 = Exp2Minus(s[tile][i / 2][i % 2 * 2 + 1], state.m[tile][1]);
      state.l[tile][0] += p0;
      state.l[tile][1] += p1;
      p_frag[tile][i / 2][i % 2] = movmatrix_trans(Pack<Factor>(p0, p1));
    }
  }

  const LdmatrixAddresses<Shape, true> values(values_at);
  uint32_t masks[Shape::kKeys / 16][2] = {};
  bool is_token[Shape::kTiles][2] = {};
  if (!tokens_differ || AreFinite<Shape>(values)) {
    GemmPv<Shape, false>(values, p_frag, masks, is_token, state);
    return;
  }
  const int first = RowOf(plan, work, Shape::FirstRow()).token;
  const int last = RowOf(plan, work, Shape::FirstRow() + Shape::kWarpRows - 1).token;
#pragma unroll 1
  for (int token = first; token <= last; ++token) {
    const int begin = work.position + token - plan.window + 1, end = work.position + token + 1;
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 8; ++i) {
      const int key = first_key + i * 8 + lane % 4 * 2;
      masks[i / 2][i % 2] =
          (begin <= key && key < end ? 0xffff : 0) | (begin <= key + 1 && key + 1 < end ? 0xffff0000 : 0);
    }
#pragma unroll
    for (int i = 0; i < Shape::kWarpRows / 4; ++i) {
      const int row = Shape::FirstRow() + i / 2 * 8 + lane % 4 * 2 + i % 2;
      is_token[i / 2][i % 2] = RowOf(plan, work, row).token == token;
    }
    GemmPv<Shape, true>(values, p_frag, masks, is_token, state);
  }
}

// Adds a KV tile to the running softmax: its S, and its values in shared memory. O is rescaled only if an S is much
// larger than its row's m; only then do the lanes exchange their maxima.
template <typename Shape>
__device__ inline void AddScores(const Plan& plan, const WorkTile& work, const KeyRange& keys, uint32_t values_at,
                                 int first_key, const float (&s)[Shape::kTiles][Shape::kKeys / 16][4],
                                 SoftmaxState<Shape>& state) {
  float max[Shape::kTiles][2];
  if (__any_sync(kAllLanes, FindMaxima<Shape>(s, state, max))) {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int lanes = 4; lanes < kWarpSize; lanes *= 2) {
          max[tile][row] = fmaxf(max[tile][row], __shfl_xor_sync(kAllLanes, max[tile][row], lanes));
        }
        if (!(max[tile][row] > state.m[tile][row] + kSlack)) continue;
        const float rescale = Exp2Minus(state.m[tile][row], max[tile][row]);
        state.m[tile][row] = max[tile][row];
        state.l[tile][row] *= rescale;
#pragma unroll
        for (int i = 0; i < Shape::kDim / 16; ++i) {
          state.o[tile][i][row] *= rescale, state.o[tile][i][2 + row] *= rescale;
        }
      }
    }
  }
  AddProbabilities<Shape>(plan, work, TokensDiffer<Shape>(keys, first_key), values_at, first_key, s, state);
}

// Adds a stage's keys and values to the running softmax.
template <typename Shape>
__device__ inline void AddKvTile(const Params& p, const Plan& plan, const WorkTile& work, const KeyRange& keys,
                                 const Query<Shape>& q, uint32_t stage, int first_key, SoftmaxState<Shape>& state) {
  float s[Shape::kTiles][Shape::kKeys / 16][4];
  ComputeScores<Shape>(p, plan, work, keys, q, stage, first_key, s);
  AddScores<Shape>(plan, work, keys, stage + Shape::kValues, first_key, s, state);
}

// A warp's (m, l, O): store_m_l(row, m, l), and store_o(row, column, o) if the warp had a KV tile.
template <typename Shape, typename StoreMl, typename StoreO>
__device__ inline void StoreSoftmaxState(const SoftmaxState<Shape>& state, int rows, bool has_o, StoreMl store_m_l,
                                         StoreO store_o) {
  const int lane = Lane();
#pragma unroll
  for (int i = 0; i < Shape::kWarpRows / 4; ++i) {
    const int tile = i / 2, column = i % 2, row = Shape::FirstRow() + tile * 8 + lane % 4 * 2 + column;
    float sum = state.l[tile][column];
#pragma unroll
    for (int lanes = 4; lanes < kWarpSize; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
    if (row >= rows) continue;
    if (lane < 4) store_m_l(row, state.m[tile][column], sum);
    if (!has_o) continue;
#pragma unroll
    for (int j = 0; j < Shape::kDim / 16; ++j) {
      const int first = j * 16 + (Shape::kIsFloat8 ? lane / 4 * 2 : lane / 4);
      store_o(row, first, state.o[tile][j][column]);
      store_o(row, first + (Shape::kIsFloat8 ? 1 : 8), state.o[tile][j][2 + column]);
    }
  }
}

}  // namespace paged_attention::decode
