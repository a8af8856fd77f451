// The values with which grouped_product is compiled, by the shape of a call.
// `devtool tune grouped_product` writes this file; tuning.json says how they were measured,
// tuning.py what they mean.
#pragma once

#include <cstdint>

namespace grouped_product {

template <int kColumnBlocks_, int kRowBlocks_, int kStages_>
struct Tuned {
  static constexpr int kColumnBlocks = kColumnBlocks_;
  static constexpr int kRowBlocks = kRowBlocks_;
  static constexpr int kStages = kStages_;
};

struct Tuning {
  /** Calls body(Tuned<...>{}) with the values for the shape. */
  template <typename Body>
  static auto Choose([[maybe_unused]] int64_t rows_per_expert, [[maybe_unused]] int64_t k, const Body& body) {
#ifdef PYXLA_TUNE_COLUMN_BLOCKS
    return body(Tuned<PYXLA_TUNE_COLUMN_BLOCKS, PYXLA_TUNE_ROW_BLOCKS, PYXLA_TUNE_STAGES>{});
#else
    if (rows_per_expert <= 1) return body(Tuned<1, 2, 6>{});
    if (rows_per_expert <= 8) {
      if (k <= 1024) return body(Tuned<1, 2, 6>{});
      return body(Tuned<1, 8, 6>{});
    }
    if (rows_per_expert <= 64) {
      if (k <= 1024) return body(Tuned<2, 4, 4>{});
      return body(Tuned<2, 4, 3>{});
    }
    return body(Tuned<1, 8, 6>{});
#endif
  }
};

}  // namespace grouped_product
