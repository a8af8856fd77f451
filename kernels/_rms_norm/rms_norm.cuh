// out[r][i] = y[r][i] / sqrt(mean_i(y[r][i]^2) + eps) * weight[i]: the device code of rms_norm and fused_add_rms_norm.
//
//   y is x; or, if kAdd, the sum x + residual, which in residual is rounded to T.
//
//   x:        [rows, hidden], T, contiguous, read
//   residual: [rows, hidden], T, contiguous, read and written; only if kAdd
//   weight:   [hidden], T or float, contiguous, read; null: all ones
//   out:      [rows, hidden], T, contiguous, written
#pragma once

#include <algorithm>
#include <type_traits>

#include "pyxla/ceil_div.h"
#include "pyxla/device/vector.cuh"
#include "pyxla/device/warp.cuh"

namespace pyxla {

/** What the kernels take; the pointers as above. */
struct RmsNormRows {
  const void* x;
  void* residual;
  const void* weight;
  void* out;
  int64_t rows;
  int64_t hidden;
  double inverse_hidden;
  double eps;
};

/** Threads of a CTA at most. */
constexpr int kMaxRowThreads = 512;
static_assert(kMaxRowThreads / kWarpSize <= kWarpSize, "one warp adds up the sums of all warps");

/** CTAs of a grid at most: its x dimension holds 2^31 - 1. */
constexpr int64_t kMaxRowBlocks = 1 << 30;

/** In float32, in the order of the elements. */
template <typename T, int kCount>
__device__ inline float SumOfSquares(const Vector<T, kCount>& y) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += static_cast<float>(y.values[i]) * static_cast<float>(y.values[i]);
  return sum;
}

/** Element by element, in float32. */
template <typename T, int kCount>
__device__ inline Vector<float, kCount> Sum(const Vector<T, kCount>& x, const Vector<T, kCount>& residual) {
  Vector<float, kCount> sum;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    sum.values[i] = static_cast<float>(x.values[i]) + static_cast<float>(residual.values[i]);
  }
  return sum;
}

/** Each element as T. */
template <typename T, int kCount>
__device__ inline Vector<T, kCount> Rounded(const Vector<float, kCount>& y) {
  Vector<T, kCount> out;
#pragma unroll
  for (int i = 0; i < kCount; ++i) out.values[i] = static_cast<T>(y.values[i]);
  return out;
}

/** y * scale * weight as T; without `weighted`, y * scale. */
template <typename T, typename Y, typename W, int kCount>
__device__ inline Vector<T, kCount> Scaled(const Vector<Y, kCount>& y, float scale, const Vector<W, kCount>& weight,
                                           bool weighted) {
  Vector<T, kCount> out;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float factor = weighted ? static_cast<float>(weight.values[i]) : 1.0f;
    out.values[i] = static_cast<T>(static_cast<float>(y.values[i]) * scale * factor);
  }
  return out;
}

/** Sum over the threads of a row: blockDim.x of them, a power of two up to a warp, or whole warps. */
__device__ inline float RowSum(float value) {
  const int width = min(blockDim.x, kWarpSize);
  for (int offset = width / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  if (blockDim.x <= kWarpSize) return value;

  __shared__ float warp_sums[kWarpSize];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
  if (lane == 0) warp_sums[warp] = value;
  __syncthreads();
  value = lane < warps ? warp_sums[lane] : 0.0f;
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

/** 1 / sqrt(mean + eps), in double: rsqrtf is off by two units in the last place, which every element would inherit. */
__device__ inline float InverseRms(float sum_of_squares, const RmsNormRows& p) {
  return static_cast<float>(rsqrt(static_cast<double>(sum_of_squares) * p.inverse_hidden + p.eps));
}

// CTAs per SM that the registers must allow, so that enough loads are in flight.
constexpr int CtasPerSm(int vectors, bool lean) {
  return vectors == 1 ? (lean ? 4 : 3) : vectors == 2 ? (lean ? 3 : 2) : vectors == 4 && lean ? 2 : 1;
}

// Rows that fit into the registers of their threads: kVectors vectors per thread. A CTA has blockDim.y rows. kFull: no
// thread without a vector, no CTA without a row, and a weight.
template <typename T, typename W, int kVectors, bool kAdd, bool kFull>
__global__ void __launch_bounds__(kMaxRowThreads, CtasPerSm(kVectors, kFull && !kAdd && sizeof(W) == sizeof(T)))
    RmsNormKernel(RmsNormRows p) {
  constexpr int kCount = kVectorCount<T>;
  using TVector = Vector<T, kCount>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int vectors = static_cast<int>(p.hidden / kCount);
  const int64_t begin = (kFull ? row : min(row, p.rows - 1)) * vectors;
  const auto* x = static_cast<const TVector*>(p.x) + begin;
  auto* residual = static_cast<TVector*>(p.residual) + begin;
  auto* out = static_cast<TVector*>(p.out) + begin;
  const auto* weight = static_cast<const Vector<W, kCount>*>(p.weight);
  const bool weighted = kFull || weight != nullptr;
  const auto for_each_vector = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) body(i, static_cast<int>(threadIdx.x + i * blockDim.x));
  };

  // The row and, where registers allow, the weight: in flight together. A thread without a vector or a row loads the
  // last one, unused: a load under a condition would wait for the one before it.
  constexpr bool kWeightAhead = kVectors <= 2;
  TVector x_values[kVectors], residual_values[kAdd ? kVectors : 1];
  Vector<W, kCount> weights[kWeightAhead ? kVectors : 1];
  for_each_vector([&](int i, int v) {
    const int at = kFull ? v : min(v, vectors - 1);
    x_values[i] = LoadOnce(x + at);
    if constexpr (kAdd) residual_values[i] = LoadOnce(residual + at);
    if (kWeightAhead && weighted) weights[i] = weight[at];
  });

  // y and the sum of its squares.
  Vector<std::conditional_t<kAdd, float, T>, kCount> y[kVectors];
  const auto mine = [&](int v) { return kFull || (row < p.rows && v < vectors); };
  float sum = 0;
  for_each_vector([&](int i, int v) {
    if constexpr (kAdd) {
      y[i] = Sum(x_values[i], residual_values[i]);
      if (mine(v)) residual[v] = Rounded<T>(y[i]);
    } else {
      y[i] = x_values[i];
    }
    const float squares = SumOfSquares(y[i]);
    sum += mine(v) ? squares : 0.0f;
  });
  const float scale = InverseRms(RowSum(sum), p);

  // Scale and weight.
  for_each_vector([&](int i, int v) {
    if (!mine(v)) return;
    if (!kWeightAhead && weighted) weights[0] = weight[v];
    out[v] = Scaled<T>(y[i], scale, weights[kWeightAhead ? i : 0], weighted);
  });
}

// Rows of any length and alignment: x and residual are read twice, the second time from the cache.
template <typename T, typename W, int kCount, bool kAdd>
__global__ void __launch_bounds__(kMaxRowThreads) RmsNormLongKernel(RmsNormRows p) {
  using TVector = Vector<T, kCount>;
  const int64_t vectors = p.hidden / kCount;
  const auto* weight = static_cast<const Vector<W, kCount>*>(p.weight);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const auto* x = reinterpret_cast<const TVector*>(static_cast<const T*>(p.x) + row * p.hidden);
    auto* residual = reinterpret_cast<TVector*>(static_cast<T*>(p.residual) + row * p.hidden);
    auto* out = reinterpret_cast<TVector*>(static_cast<T*>(p.out) + row * p.hidden);
    const auto load = [&](int64_t v) {
      if constexpr (kAdd) {
        return Sum(x[v], residual[v]);
      } else {
        return x[v];
      }
    };

    float sum = 0;
#pragma unroll 4
    for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) sum += SumOfSquares(load(v));
    const float scale = InverseRms(RowSum(sum), p);

#pragma unroll 4
    for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
      const auto y = load(v);
      Vector<W, kCount> factors;
      if (weight != nullptr) factors = weight[v];
      if constexpr (kAdd) residual[v] = Rounded<T>(y);
      out[v] = Scaled<T>(y, scale, factors, weight != nullptr);
    }
    // The next row writes the warps' sums again.
    __syncthreads();
  }
}

template <typename T, typename W, int kVectors, bool kAdd>
void LaunchRowsInRegisters(cudaStream_t stream, const RmsNormRows& p, int64_t vectors) {
  constexpr int64_t kShortRowsTimesThreads = 256;
  // Threads of a row: a power of two up to a warp, for the shuffles; then whole warps.
  const int64_t wanted = CeilDiv(vectors, kVectors);
  int64_t threads = 1;
  while (threads < std::min<int64_t>(wanted, kWarpSize)) threads *= 2;
  if (wanted > kWarpSize) threads = CeilDiv(wanted, kWarpSize) * kWarpSize;
  const int64_t rows = threads <= kWarpSize ? kShortRowsTimesThreads / threads : 1;
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(rows));

  const auto blocks = static_cast<unsigned>(CeilDiv(p.rows, rows));
  if (threads * kVectors == vectors && p.rows % rows == 0 && p.weight != nullptr) {
    RmsNormKernel<T, W, kVectors, kAdd, true><<<blocks, block, 0, stream>>>(p);
  } else {
    RmsNormKernel<T, W, kVectors, kAdd, false><<<blocks, block, 0, stream>>>(p);
  }
}

template <typename T, typename W, bool kAdd, typename Tuning>
cudaError_t LaunchRows(cudaStream_t stream, const RmsNormRows& p) {
  constexpr int kCount = kVectorCount<T>;
  const bool aligned = p.hidden % kCount == 0 && IsAligned(p.x, kVectorBytes) && IsAligned(p.residual, kVectorBytes) &&
                       IsAligned(p.weight, sizeof(W) * kCount) && IsAligned(p.out, kVectorBytes);
  const int64_t vectors = p.hidden / kCount;
  const auto blocks = static_cast<unsigned>(std::min(p.rows, kMaxRowBlocks));
  if (!aligned) {
    RmsNormLongKernel<T, W, 1, kAdd><<<blocks, kMaxRowThreads, 0, stream>>>(p);
  } else {
    Tuning::Choose(p.rows, vectors, [&](auto tuned) {
      constexpr int kVectors = decltype(tuned)::kVectorsPerThread;
      if (vectors > kVectors * kMaxRowThreads || p.rows > kMaxRowBlocks) {
        RmsNormLongKernel<T, W, kCount, kAdd><<<blocks, kMaxRowThreads, 0, stream>>>(p);
      } else {
        LaunchRowsInRegisters<T, W, kVectors, kAdd>(stream, p, vectors);
      }
    });
  }
  return cudaGetLastError();
}

/** Launches the kernel that fits the rows' length and alignment; Tuning is that of the op's tuning.h. */
template <bool kAdd, typename Tuning>
cudaError_t LaunchRmsNormRows(cudaStream_t stream, FloatType dtype, FloatType weight_dtype, const RmsNormRows& rows) {
  if (rows.rows == 0 || rows.hidden == 0) return cudaSuccess;
  return DispatchCuda(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return weight_dtype == dtype ? LaunchRows<T, T, kAdd, Tuning>(stream, rows)
                                 : LaunchRows<T, float, kAdd, Tuning>(stream, rows);
  });
}

}  // namespace pyxla
