// The values with which gelu_and_mul is compiled, by the shape of a call.
// `devtool tune gelu_and_mul` writes this file; tuning.json says how they were measured,
// tuning.py what they mean.
#pragma once

#include <cstdint>

namespace gelu_and_mul {

template <int kThreads_, int kVectorsPerThread_>
struct Tuned {
  static constexpr int kThreads = kThreads_;
  static constexpr int kVectorsPerThread = kVectorsPerThread_;
};

struct Tuning {
  /** Calls body(Tuned<...>{}) with the values for the shape. */
  template <typename Body>
  static auto Choose([[maybe_unused]] int64_t vectors, const Body& body) {
#ifdef PYXLA_TUNE_THREADS
    return body(Tuned<PYXLA_TUNE_THREADS, PYXLA_TUNE_VECTORS_PER_THREAD>{});
#else
    return body(Tuned<256, 1>{});
#endif
  }
};

}  // namespace gelu_and_mul
