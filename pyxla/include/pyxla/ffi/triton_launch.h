// Where a test takes a library's launches of Triton kernels over from CUDA, to run them in Triton's interpreter
// (pyxla/testing/triton_interpreter.py).
#pragma once

#include <cstdint>

namespace pyxla {

/**
 * Runs a variant of triton_kernels.py, by its index in VARIANTS; `arguments` are pointers to the kernel's parameters,
 * in order. Returns whether it ran.
 */
using TritonLaunch = bool (*)(int32_t variant, const int64_t grid[3], const void* const* arguments);

/** Null: CUDA launches. One variable for each library; the op table has its address. */
inline TritonLaunch triton_launch = nullptr;

}  // namespace pyxla
