// out[r][i] = activation(x[r][i]) * x[r][d + i]: the device code of the gated activations, one op each.
//
//   x:   [rows, 2 * d], T, contiguous, read
//   out: [rows, d], T, contiguous, written
#pragma once

#include <algorithm>

#include "pyxla/ceil_div.h"
#include "pyxla/device/math.cuh"
#include "pyxla/device/vector.cuh"

namespace pyxla {

/** x / (1 + exp(-u)), as exact as a result in T needs it. */
template <typename T>
__device__ inline float TimesSigmoid(float x, float u) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return x / (1.0f + expf(-u));
  } else {
    return x * Reciprocal(1.0f + Exp2(-kLog2E * u));
  }
}

// Each thread computes Tuned::kVectorsPerThread vectors of the result; the loop is for more of them than a grid has.
template <typename T, int kCount, typename Activation, typename Tuned>
__global__ void __launch_bounds__(Tuned::kThreads)
    GatedKernel(const Vector<T, kCount>* x, Vector<T, kCount>* out, int64_t vectors, int64_t row_vectors) {
  constexpr int kThreads = Tuned::kThreads, kVectors = Tuned::kVectorsPerThread;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kVectors;
  int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kVectors + threadIdx.x;
  for (; first < vectors; first += stride) {
    Vector<T, kCount> gates[kVectors], ups[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      // Beyond the end the last vector, unused: a load under a condition would wait for the one before it.
      const int64_t i = k == 0 ? first : min(first + k * kThreads, vectors - 1);
      // i / row_vectors whole rows precede result vector i, each with a second half.
      const int64_t gate_at = i + i / row_vectors * row_vectors;
      gates[k] = LoadOnce(x + gate_at);
      ups[k] = LoadOnce(x + gate_at + row_vectors);
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int64_t i = first + k * kThreads;
      if (k > 0 && i >= vectors) break;
      Vector<T, kCount> gate = gates[k];
      const Vector<T, kCount> up = ups[k];
      if constexpr (sizeof(T) == sizeof(float)) {
        // Without this use of `up` the compiler loads it after float's long functions, to save registers.
        const int zero = static_cast<int>(row_vectors >> 63);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          gate.values[j] = __int_as_float(__float_as_int(gate.values[j]) ^ (__float_as_int(up.values[j]) & zero));
        }
      }
      Vector<T, kCount> result;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float activated = Activation::template Of<T>(static_cast<float>(gate.values[j]));
        result.values[j] = static_cast<T>(activated * static_cast<float>(up.values[j]));
      }
      out[i] = result;
    }
  }
}

template <typename T, int kCount, typename Activation, typename Tuned>
cudaError_t LaunchGatedVectors(cudaStream_t stream, const void* x, void* out, int64_t rows, int64_t d) {
  constexpr int64_t kMaxBlocks = 1 << 30;
  const int64_t row_vectors = d / kCount, vectors = rows * row_vectors;
  const int64_t blocks = std::min(CeilDiv(vectors, Tuned::kThreads * Tuned::kVectorsPerThread), kMaxBlocks);
  GatedKernel<T, kCount, Activation, Tuned><<<static_cast<unsigned>(blocks), Tuned::kThreads, 0, stream>>>(
      static_cast<const Vector<T, kCount>*>(x), static_cast<Vector<T, kCount>*>(out), vectors, row_vectors);
  return cudaGetLastError();
}

/**
 * Launches the kernel. Activation has `template <typename T> static __device__ float Of(float x)`, for a result that is
 * rounded to T. Tuning is that of the op's tuning.h.
 */
template <typename Activation, typename Tuning>
cudaError_t LaunchGated(cudaStream_t stream, FloatType dtype, const void* x, void* out, int64_t rows, int64_t d) {
  if (rows == 0 || d == 0) return cudaSuccess;
  return DispatchCuda(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool vectorized = d % kVectorCount<T> == 0 && IsAligned(x, kVectorBytes) && IsAligned(out, kVectorBytes);
    const int64_t vectors = rows * d * static_cast<int64_t>(sizeof(T)) / kVectorBytes;
    return Tuning::Choose(vectors, [&](auto tuned) {
      using Tuned = decltype(tuned);
      return vectorized ? LaunchGatedVectors<T, kVectorCount<T>, Activation, Tuned>(stream, x, out, rows, d)
                        : LaunchGatedVectors<T, 1, Activation, Tuned>(stream, x, out, rows, d);
    });
  });
}

}  // namespace pyxla
