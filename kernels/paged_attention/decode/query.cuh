// The decode kernel's query rows, in the registers of each warp.
#pragma once

#include "paged_attention/decode/mainloop_load.cuh"

namespace paged_attention::decode {

// The query as the B operand of S = K Q^T: a lane holds columns of row lane / 4 of each tile. For the rest a
// lane's rows are lane % 4 * 2 and the next one of each tile, as in the MMAs.
template <typename Shape>
struct Query {
  uint32_t values[Shape::kTiles][Shape::kDim / 16][2];
  // Of S over a float8 cache, where the rows of a bfloat16 query differ.
  float factor[Shape::kIsFloat8 ? Shape::kTiles : 1][2];

  __device__ float Factor(const Params& p, int tile, int column) const {
    return Shape::kIsFloat8 ? factor[tile][column] : p.scale;
  }
};

// Float8 keys are multiplied as float16. A bfloat16 row is divided by the power of two that brings it into range.
template <int kSteps>
__device__ inline float ToHalves(uint32_t (&values)[kSteps][2]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 2 * kSteps; ++i) {
    const float2 pair = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(values[i / 2][i % 2]));
    largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
  }
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
  const int exponent = largest > 0 && largest < INFINITY ? ilogbf(largest) : 0;
#pragma unroll
  for (int i = 0; i < 2 * kSteps; ++i) {
    const float2 pair = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(values[i / 2][i % 2]));
    values[i / 2][i % 2] = Pack<__half>(ldexpf(pair.x, -exponent), ldexpf(pair.y, -exponent));
  }
  return ldexpf(1, exponent);
}

// A lane has two pairs of each 16 columns, the second one `second` columns after the first. This is pair number `pair`.
__device__ inline uint32_t LoadPair(const uint16_t* columns, int pair, int second) {
  return *reinterpret_cast<const uint32_t*>(columns + pair / 2 * 16 + pair % 2 * second);
}

template <typename Shape>
__device__ inline void LoadQuery(const Params& p, const Plan& plan, const WorkTile& work, Query<Shape>& q) {
  const int lane = Lane();
  // In the order of K's columns: see GemmQk.
  const int first = Shape::kIsFloat8 ? lane % 4 * 4 : lane % 4 * 2;
  constexpr int kSecond = Shape::kIsFloat8 ? 2 : 8;
  // The loads of all tiles, before any is waited for.
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    const Row row = RowOf(plan, work, Shape::FirstRow() + tile * 8 + lane / 4);
    const auto* query =
        static_cast<const uint16_t*>(p.query) + int64_t{(work.query_row + row.token) * plan.heads + row.head} * plan.d;
    // A row that does not exist loads another row, and is cleared below: with a condition at each load the compiler may
    // make every load wait for the one before it.
    if (plan.d == Shape::kDim) {
#pragma unroll
      for (int i = 0; i < Shape::kDim / 8; ++i) q.values[tile][i / 2][i % 2] = LoadPair(query + first, i, kSecond);
    } else {
#pragma unroll
      for (int i = 0; i < Shape::kDim / 8; ++i) {
        const bool is_column = i / 2 * 16 + first + i % 2 * kSecond < plan.d;
        q.values[tile][i / 2][i % 2] = is_column ? LoadPair(query + first, i, kSecond) : 0;
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    const bool is_row = Shape::FirstRow() + tile * 8 + lane / 4 < work.rows;
#pragma unroll
    for (int i = 0; i < Shape::kDim / 8; ++i) q.values[tile][i / 2][i % 2] = is_row ? q.values[tile][i / 2][i % 2] : 0;
    float factor = p.scale;
    if constexpr (Shape::kIsFloat8) {
      if (p.kv_scales != nullptr) factor *= p.kv_scales[work.kv_head];
      if (p.dtype == Dtype::kBFloat16) factor *= ToHalves(q.values[tile]);
    }
    // Waits for Q here. Else the first MMA of each KV tile would wait for it, and for all loads that share its
    // scoreboard: the block table's entry of the KV tile after next.
    uint32_t& last = q.values[tile][Shape::kDim / 16 - 1][1];
    last = __shfl_sync(kAllLanes, last, lane);
    if constexpr (Shape::kIsFloat8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) q.factor[tile][i] = __shfl_sync(kAllLanes, factor, (lane % 4 * 2 + i) * 4);
    }
  }
}

}  // namespace paged_attention::decode
