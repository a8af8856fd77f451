#include <algorithm>

#include "pyxla/ceil_div.h"
#include "pyxla/device/vector.cuh"
#include "simple_add/simple_add.h"

namespace simple_add {

using pyxla::Vector;

constexpr int kThreads = 256;
// The grid's x dimension holds at most 2^31 - 1 CTAs; a loop covers the rest.
constexpr int64_t kMaxBlocks = 1 << 30;

template <typename T>
__device__ inline T Add(T a, T b, float alpha) {
  return static_cast<T>(static_cast<float>(a) + alpha * static_cast<float>(b));
}

// One vector per thread, then one element per thread for what is left of the last vector.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    SimpleAddKernel(const T* a, const T* b, T* out, int64_t vectors, int64_t rest, float alpha) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors + rest; i += stride) {
    if (i < vectors) {
      const auto a_values = pyxla::LoadOnce(reinterpret_cast<const Vector<T, kCount>*>(a) + i);
      const auto b_values = pyxla::LoadOnce(reinterpret_cast<const Vector<T, kCount>*>(b) + i);
      Vector<T, kCount> sum;
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum.values[j] = Add(a_values.values[j], b_values.values[j], alpha);
      reinterpret_cast<Vector<T, kCount>*>(out)[i] = sum;
    } else {
      const int64_t element = vectors * kCount + (i - vectors);
      out[element] = Add(a[element], b[element], alpha);
    }
  }
}

cudaError_t LaunchSimpleAdd(cudaStream_t stream, pyxla::FloatType dtype, const void* a, const void* b, void* out,
                            int64_t n, float alpha) {
  if (n == 0) return cudaSuccess;
  return pyxla::DispatchCuda(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kCount = pyxla::kVectorCount<T>;
    const bool aligned = pyxla::IsAligned(a, pyxla::kVectorBytes) && pyxla::IsAligned(b, pyxla::kVectorBytes) &&
                         pyxla::IsAligned(out, pyxla::kVectorBytes);
    const int64_t vectors = aligned ? n / kCount : 0, rest = n - vectors * kCount;
    const int64_t blocks = std::min(pyxla::CeilDiv(vectors + rest, kThreads), kMaxBlocks);
    SimpleAddKernel<T, kCount><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), vectors, rest, alpha);
    return cudaGetLastError();
  });
}

}  // namespace simple_add
