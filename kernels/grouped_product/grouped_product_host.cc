#include <algorithm>
#include <cstring>
#include <vector>

#include "grouped_product/grouped_product.h"
#include "pyxla/ceil_div.h"
#include "pyxla/host/dtype.h"
#include "pyxla/host/multiversion.h"

namespace grouped_product {
namespace {

using pyxla::CeilDiv;

// k is multiplied in blocks of kBlockK, in kLanes independent sums that the compiler keeps in vector registers. A block
// of a weight's row is converted once for kTileRows rows of x, a block of these once for kTileN rows of the weight.
constexpr int kLanes = 32, kBlockK = 512, kTileRows = 8, kTileN = 32;
static_assert(kBlockK % kLanes == 0, "no remainder");

// Some rows of one expert, as places in `Plan::rows`.
struct Tile {
  int64_t expert, begin;
  int count;
};

// The rows in the order of their experts, in tiles.
struct Plan {
  std::vector<int64_t> rows;
  std::vector<Tile> tiles;

  explicit Plan(const Params& p) {
    std::vector<int64_t> begins(p.num_experts + 1);
    for (int64_t row = 0; row < p.rows(); ++row) {
      if (IsExpert(p, row)) ++begins[p.experts[row] + 1];
    }
    for (int64_t expert = 0; expert < p.num_experts; ++expert) {
      const int64_t begin = begins[expert], end = begins[expert + 1] += begin;
      for (int64_t at = begin; at < end; at += kTileRows) {
        tiles.push_back({expert, at, static_cast<int>(std::min<int64_t>(kTileRows, end - at))});
      }
    }
    rows.resize(begins.back());
    for (int64_t row = 0; row < p.rows(); ++row) {
      if (IsExpert(p, row)) rows[begins[p.experts[row]]++] = row;
    }
  }

  static bool IsExpert(const Params& p, int64_t row) { return p.experts[row] >= 0 && p.experts[row] < p.num_experts; }
};

// to[i] = from[i] for i in [0, n), then zeros up to a multiple of kLanes.
template <typename T>
PYXLA_INLINE int LoadBlock(const T* from, float* to, int n) {
  const int padded = static_cast<int>(CeilDiv(n, kLanes)) * kLanes;
  pyxla::Convert(from, to, n);
  std::fill(to + n, to + padded, 0.0f);
  return padded;
}

PYXLA_INLINE float Dot(const float* __restrict a, const float* __restrict b, int n) {
  float lanes[kLanes] = {};
  for (int i = 0; i < n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// Columns [n_begin, n_end), at most kTileN, of the rows of a tile.
template <typename T>
PYXLA_INLINE void MultiplyTileOf(const Params& p, const Tile& tile, const int64_t* rows, int64_t n_begin,
                                 int64_t n_end) {
  const T* weight = static_cast<const T*>(p.weight) + tile.expert * p.n * p.k;
  const T* bias = p.bias == nullptr ? nullptr : static_cast<const T*>(p.bias) + tile.expert * p.n;
  const int64_t rows_per_x = p.x_rows == p.top_k ? 1 : p.top_k;
  float x[kTileRows][kBlockK], block[kBlockK], sums[kTileRows][kTileN] = {};
  for (int64_t at = 0; at < p.k; at += kBlockK) {
    const int count = static_cast<int>(std::min<int64_t>(kBlockK, p.k - at));
    for (int row = 0; row < tile.count; ++row) {
      LoadBlock(static_cast<const T*>(p.x) + rows[row] / rows_per_x * p.k + at, x[row], count);
    }
    for (int64_t column = n_begin; column < n_end; ++column) {
      const int padded = LoadBlock(weight + column * p.k + at, block, count);
      for (int row = 0; row < tile.count; ++row) sums[row][column - n_begin] += Dot(x[row], block, padded);
    }
  }
  for (int row = 0; row < tile.count; ++row) {
    T* out = static_cast<T*>(p.out) + rows[row] * p.n;
    for (int64_t column = n_begin; column < n_end; ++column) {
      const float sum = sums[row][column - n_begin];
      out[column] = pyxla::FromFloat<T>(bias == nullptr ? sum : sum + pyxla::ToFloat(bias[column]));
    }
  }
}

PYXLA_MULTIVERSION void MultiplyTile(const Params& p, const Tile& tile, const int64_t* rows, int64_t n_begin,
                                     int64_t n_end) {
  switch (p.dtype) {
    case pyxla::FloatType::kFloat16: return MultiplyTileOf<pyxla::F16>(p, tile, rows, n_begin, n_end);
    case pyxla::FloatType::kBFloat16: return MultiplyTileOf<pyxla::BF16>(p, tile, rows, n_begin, n_end);
    default: return MultiplyTileOf<float>(p, tile, rows, n_begin, n_end);
  }
}

}  // namespace

void GroupedProductHost(const Params& p, const ParallelFor& parallel_for) {
  if (p.rows() == 0 || p.n == 0) return;
  const int64_t row_bytes = p.n * (p.dtype == pyxla::FloatType::kFloat32 ? 4 : 2);
  for (int64_t row = 0; row < p.rows(); ++row) {
    if (!Plan::IsExpert(p, row)) std::memset(static_cast<char*>(p.out) + row * row_bytes, 0, row_bytes);
  }

  // A piece is some columns of one tile, then of the next: threads share the weight of an expert with many rows.
  const Plan plan(p);
  constexpr int64_t kProductsPerPiece = 1 << 18;
  const int64_t column_tiles = CeilDiv(p.n, kTileN), tiles = static_cast<int64_t>(plan.tiles.size());
  const int64_t per_piece = kProductsPerPiece / (kTileN * kTileRows * std::max<int64_t>(p.k, 1));
  parallel_for(tiles * column_tiles, per_piece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Tile& tile = plan.tiles[i / column_tiles];
      const int64_t n_begin = i % column_tiles * kTileN;
      MultiplyTile(p, tile, plan.rows.data() + tile.begin, n_begin, std::min(n_begin + kTileN, p.n));
    }
  });
}

}  // namespace grouped_product
