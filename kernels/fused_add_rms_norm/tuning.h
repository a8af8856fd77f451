// The values with which fused_add_rms_norm is compiled, by the shape of a call.
// `devtool tune fused_add_rms_norm` writes this file; tuning.json says how they were measured,
// tuning.py what they mean.
#pragma once

#include <cstdint>

namespace fused_add_rms_norm {

template <int kVectorsPerThread_>
struct Tuned {
  static constexpr int kVectorsPerThread = kVectorsPerThread_;
};

struct Tuning {
  /** Calls body(Tuned<...>{}) with the values for the shape. */
  template <typename Body>
  static auto Choose([[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t vectors, const Body& body) {
#ifdef PYXLA_TUNE_VECTORS_PER_THREAD
    return body(Tuned<PYXLA_TUNE_VECTORS_PER_THREAD>{});
#else
    if (rows <= 256) {
      if (vectors <= 512) return body(Tuned<1>{});
      if (vectors <= 1024) return body(Tuned<2>{});
      if (vectors <= 2048) return body(Tuned<4>{});
      return body(Tuned<8>{});
    }
    if (vectors <= 32) return body(Tuned<1>{});
    if (vectors <= 1024) return body(Tuned<2>{});
    if (vectors <= 2048) return body(Tuned<4>{});
    return body(Tuned<8>{});
#endif
  }
};

}  // namespace fused_add_rms_norm
