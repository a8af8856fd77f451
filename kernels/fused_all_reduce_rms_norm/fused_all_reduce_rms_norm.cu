#include <algorithm>

#include "_rms_norm/rms_norm.cuh"
#include "fused_all_reduce_rms_norm/fused_all_reduce_rms_norm.h"

namespace fused_all_reduce_rms_norm {

using pyxla::Vector;

// The parts of a launch.
struct Parts {
  const char* first;  // in order, `stride` bytes apart
  int64_t stride;
  int count;
};

// Polls between two looks at the clock, which is slow to read.
constexpr int kPollsPerLook = 256;

__device__ inline uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Loads what another device has released.
__device__ inline uint32_t ld_acquire_sys(const uint32_t* pointer) {
  uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}

// Releases to all devices what this thread has written or seen, and stores a value.
__device__ inline void st_release_sys(uint32_t* pointer, uint32_t value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

// The parts that arrive in call `epoch` at a device, in order of places.
__device__ inline char* Slots(Header* workspace, int count, uint32_t epoch) {
  return reinterpret_cast<char*>(workspace + 1) + (epoch & 1) * count * kMaxBytes;
}

// The flag is at or after the call; calls are counted modulo 2^32.
__device__ inline bool HasCome(uint32_t flag, uint32_t epoch) { return static_cast<int32_t>(flag - epoch) >= 0; }

template <typename V>
__device__ inline V LoadFromL2(const V* from) {
  union {
    uint4 words;
    V value;
  } loaded;
  if constexpr (sizeof(V) == sizeof(uint4)) {
    loaded.words = __ldcg(reinterpret_cast<const uint4*>(from));
  } else {
    static_assert(sizeof(V) == sizeof(from->values[0]), "a vector of 16 bytes or one element");
    loaded.value.values[0] = __ldcg(&from->values[0]);
  }
  return loaded.value;
}

// Writes this CTA's rows to the other devices and waits for theirs. A device may write a slot of two calls ago: it has
// ended the call in between, so all have begun that one, and ended the one before, which read the slot.
template <typename V>
__device__ inline void ExchangeRows(const V* x, int64_t rows, int64_t vectors, const Peers& peers, uint32_t epoch) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int64_t v = row * vectors + threadIdx.x; v < (row + 1) * vectors; v += blockDim.x) {
      const V value = x[v];
      for (int step = 1; step < peers.count; ++step) {
        // Each device begins with another one, so that no link is used by all at once.
        int other = peers.place + step;
        if (other >= peers.count) other -= peers.count;
        char* slots = Slots(peers.workspaces[other], peers.count, epoch);
        reinterpret_cast<V*>(slots + peers.place * kMaxBytes)[v] = value;
      }
    }
  }

  // The barrier orders the stores of all threads before the flag's.
  __syncthreads();
  const int other = threadIdx.x;
  if (other < peers.count && other != peers.place) {
    st_release_sys(&peers.workspaces[other]->flags[blockIdx.x][peers.place], epoch);
    const uint32_t* flag = &peers.workspaces[peers.place]->flags[blockIdx.x][other];
    const uint64_t begin = Nanoseconds();
    for (int polls = 0; !HasCome(ld_acquire_sys(flag), epoch); ++polls) {
      // The other device is lost, and with it the result: an error of the launch ends the process' use of this device.
      if (polls % kPollsPerLook == 0 && Nanoseconds() - begin > peers.timeout_ns) __trap();
    }
  }
  __syncthreads();
}

// A CTA has each gridDim.x-th row. kVectors: of each thread, which keeps them in registers; 0: any number, which are
// added up twice. kCount: 1 where rows do not start on 16 bytes.
template <typename T, typename W, int kCount, int kVectors>
__global__ void __launch_bounds__(pyxla::kMaxRowThreads)
    FusedAllReduceRmsNormKernel(const pyxla::RmsNormRows p, const Parts given, const __grid_constant__ Peers peers) {
  using TVector = Vector<T, kCount>;
  const int64_t vectors = p.hidden / kCount;
  const auto* x = static_cast<const TVector*>(p.x);
  auto* residual = static_cast<TVector*>(p.residual);
  auto* out = static_cast<TVector*>(p.out);
  const auto* weight = static_cast<const Vector<W, kCount>*>(p.weight);

  Parts parts = given;
  uint32_t epoch = 0;
  if (peers.count > 0) {
    Header* own = peers.workspaces[peers.place];
    epoch = __ldcg(&own->epoch) + 1;
    ExchangeRows(x, p.rows, vectors, peers, epoch);
    parts = {Slots(own, peers.count, epoch), kMaxBytes, peers.count};
  }

  // The parts in order, then the residual: the same bits on each device.
  const auto part_of = [&](int part) {
    const char* data = parts.first + part * parts.stride;
    return peers.count > 0 && part == peers.place ? x : reinterpret_cast<const TVector*>(data);
  };
  const auto total = [&](int64_t v) {
    const TVector first = LoadFromL2(part_of(0) + v), last = residual[v];
    Vector<float, kCount> sum;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum.values[i] = static_cast<float>(first.values[i]);
#pragma unroll 4
    for (int part = 1; part < parts.count; ++part) {
      const TVector addend = LoadFromL2(part_of(part) + v);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum.values[i] += static_cast<float>(addend.values[i]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum.values[i] += static_cast<float>(last.values[i]);
    return sum;
  };
  const auto store = [&](int64_t begin, int64_t v, const Vector<float, kCount>& y, float scale) {
    Vector<W, kCount> factors;
    if (weight != nullptr) factors = weight[v];
    residual[begin + v] = pyxla::Rounded<T>(y);
    out[begin + v] = pyxla::Scaled<T>(y, scale, factors, weight != nullptr);
  };

  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t begin = row * vectors;
    float sum = 0;
    if constexpr (kVectors > 0) {
      Vector<float, kCount> y[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int64_t v = threadIdx.x + i * blockDim.x;
        if (v >= vectors) continue;
        y[i] = total(begin + v);
        sum += pyxla::SumOfSquares(y[i]);
      }
      const float scale = pyxla::InverseRms(pyxla::RowSum(sum), p);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int64_t v = threadIdx.x + i * blockDim.x;
        if (v < vectors) store(begin, v, y[i], scale);
      }
    } else {
      for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) sum += pyxla::SumOfSquares(total(begin + v));
      const float scale = pyxla::InverseRms(pyxla::RowSum(sum), p);
      for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) store(begin, v, total(begin + v), scale);
    }
    // The next row writes the warps' sums again.
    __syncthreads();
  }

  // The last CTA counts the call, so that a captured launch counts too. All have read the count before.
  if (peers.count > 0 && threadIdx.x == 0) {
    Header* own = peers.workspaces[peers.place];
    if (atomicInc(&own->finished, gridDim.x - 1) == gridDim.x - 1) own->epoch = epoch;
  }
}

template <typename T, typename W, int kCount, int kVectors>
static cudaError_t Launch(cudaStream_t stream, const pyxla::RmsNormRows& rows, const Parts& parts, const Peers& peers) {
  const int64_t vectors = rows.hidden / kCount;
  const int64_t wanted = kVectors == 0 ? pyxla::kMaxRowThreads : pyxla::CeilDiv(vectors, kVectors);
  const auto threads = static_cast<unsigned>(pyxla::CeilDiv(wanted, pyxla::kWarpSize) * pyxla::kWarpSize);
  const auto ctas = static_cast<unsigned>(std::min(rows.rows, peers.count > 0 ? peers.ctas : pyxla::kMaxRowBlocks));
  FusedAllReduceRmsNormKernel<T, W, kCount, kVectors><<<ctas, threads, 0, stream>>>(rows, parts, peers);
  return cudaGetLastError();
}

template <typename T, typename W>
static cudaError_t LaunchForLength(cudaStream_t stream, const pyxla::RmsNormRows& rows, const Parts& parts,
                                   const Peers& peers) {
  constexpr int kCount = pyxla::kVectorCount<T>;
  const bool aligned = rows.hidden % kCount == 0 && pyxla::IsAligned(rows.x, pyxla::kVectorBytes) &&
                       pyxla::IsAligned(rows.residual, pyxla::kVectorBytes) &&
                       pyxla::IsAligned(rows.weight, sizeof(W) * kCount) &&
                       pyxla::IsAligned(rows.out, pyxla::kVectorBytes);
  const int64_t vectors = rows.hidden / kCount;
  if (!aligned) return Launch<T, W, 1, 0>(stream, rows, parts, peers);
  if (vectors <= pyxla::kMaxRowThreads) return Launch<T, W, kCount, 1>(stream, rows, parts, peers);
  if (vectors <= 2 * pyxla::kMaxRowThreads) return Launch<T, W, kCount, 2>(stream, rows, parts, peers);
  if (vectors <= 4 * pyxla::kMaxRowThreads) return Launch<T, W, kCount, 4>(stream, rows, parts, peers);
  return Launch<T, W, kCount, 0>(stream, rows, parts, peers);
}

cudaError_t LaunchFusedAllReduceRmsNorm(cudaStream_t stream, const Params& params, const Peers& peers) {
  if (params.rows == 0 || params.hidden == 0) return cudaSuccess;
  const pyxla::RmsNormRows rows = {.x = params.parts[0],
                                   .residual = params.residual,
                                   .weight = params.weight,
                                   .out = params.out,
                                   .rows = params.rows,
                                   .hidden = params.hidden,
                                   .inverse_hidden = 1.0 / static_cast<double>(params.hidden),
                                   .eps = params.eps};
  return pyxla::DispatchCuda(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Parts parts = {static_cast<const char*>(params.parts[0]),
                         params.rows * params.hidden * static_cast<int64_t>(sizeof(T)), params.count};
    return params.weight_dtype == params.dtype ? LaunchForLength<T, T>(stream, rows, parts, peers)
                                               : LaunchForLength<T, float>(stream, rows, parts, peers);
  });
}

}  // namespace fused_all_reduce_rms_norm
