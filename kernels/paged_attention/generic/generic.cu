// The generic kernel: any arguments, no tensor cores. One CTA of eight warps per token, kv head and four heads of its
// group; no pipeline: a warp takes every eighth step of keys and loads kUnroll of them before it uses the first.
//
//   warp   lanes_per_key lanes hold a key, kElements of it each; S by shuffles, softmax and O in registers
//   CTA    (m, l, O) of the warps through shared memory, after the one __syncthreads; then the sink and the result
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "paged_attention/kernels.h"
#include "paged_attention/sequences.cuh"

namespace paged_attention {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;

// Heads of one group that share a CTA's reads of the cache; a larger group takes several CTAs.
constexpr int kHeads = 4;

// A key is spread over lanes of kElements each: 8 bytes of float8, 16 of the other narrow dtypes, 32 of float.
constexpr int kElements = 8;
static_assert(kHeadDimUnit % kElements == 0, "a lane holds all of its elements or none");
static_assert(kMaxHeadDim <= kWarpSize * kElements, "a warp holds a whole key");

// Keys whose loads a lane has in flight.
constexpr int kUnroll = 4;

template <typename T>
struct alignas(sizeof(T) == 1 ? 8 : 16) Elements {
  T values[kElements];
};

// Running softmax of a head: the largest S, the sum of P, and this lane's part of O = sum of P * V.
struct SoftmaxState {
  float m = -INFINITY, l = 0, o[kElements] = {};
};

// e^(s - m); m is minus infinity if there was no key so far.
__device__ inline float ExpMinus(float s, float m) { return expf(s - (m == -INFINITY ? 0.0f : m)); }

// Adds the (m, l, o) of other keys.
__device__ inline void Merge(SoftmaxState& state, float m, float l, const float (&o)[kElements]) {
  const float both = fmaxf(state.m, m);
  const float rescale = ExpMinus(state.m, both), other_rescale = ExpMinus(m, both);
  state.m = both;
  state.l = state.l * rescale + l * other_rescale;
#pragma unroll
  for (int i = 0; i < kElements; ++i) state.o[i] = state.o[i] * rescale + o[i] * other_rescale;
}

// One CTA: one token, one kv head, up to kHeads heads of its group.
template <typename T, typename Cache>
__global__ void __launch_bounds__(kThreads) GenericKernel(Params p) {
  __shared__ float warp_m[kWarps][kHeads], warp_l[kWarps][kHeads], warp_o[kWarps][kHeads][kMaxHeadDim];
  const int d = static_cast<int>(p.head_dim), block_size = static_cast<int>(p.block_size);
  const int64_t token = blockIdx.x, kv_head = blockIdx.y, group = p.heads / p.kv_heads;
  const int heads = static_cast<int>(min(static_cast<int64_t>(kHeads), group - blockIdx.z * kHeads));
  const int64_t first_head = kv_head * group + blockIdx.z * kHeads, row = token * p.heads + first_head;
  const T* query = static_cast<const T*>(p.query) + row * d;
  T* out = static_cast<T*>(p.out) + row * d;
  float* lse = p.lse == nullptr ? nullptr : p.lse + row;

  const Place place = FindPlace(p, token);
  if (!place.is_valid || place.is_padding) {
    const T fill = static_cast<T>(place.is_valid ? 0.0f : NAN);
    for (int i = threadIdx.x; i < heads * d; i += kThreads) out[i] = fill;
    if (lse != nullptr && threadIdx.x < heads) lse[threadIdx.x] = place.is_valid ? -INFINITY : NAN;
    return;
  }

  // Lanes of a warp: as many to a key as hold it, rounded up to a power of two, and as many keys as fit.
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  int lanes_per_key = 1;
  while (lanes_per_key * kElements < d) lanes_per_key *= 2;
  const int keys_per_warp = kWarpSize / lanes_per_key, element = lane % lanes_per_key * kElements;
  const bool holds_elements = element < d;

  float q[kHeads][kElements] = {}, slopes[kHeads] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h < heads && p.alibi_slopes != nullptr) slopes[h] = p.alibi_slopes[first_head + h];
    if (h >= heads || !holds_elements) continue;
    const Elements<T> values = *reinterpret_cast<const Elements<T>*>(query + h * d + element);
#pragma unroll
    for (int i = 0; i < kElements; ++i) q[h][i] = static_cast<float>(values.values[i]);
  }

  const int32_t* table = p.block_tables + place.seq * p.max_blocks;
  const Cache* keys = static_cast<const Cache*>(p.kv_cache) + kv_head * d + element;
  const Cache* values = keys + p.blocks * p.block_size * p.kv_heads * d;
  const int64_t key_begin = max(static_cast<int64_t>(0), place.position - p.window + 1), key_end = place.position + 1;
  const int keys_per_step = kWarps * keys_per_warp;
  // The scale of all keys is one of S, the scale of all values one of the result.
  const float scale = p.kv_scales == nullptr ? p.scale : p.scale * p.kv_scales[kv_head];
  const float value_scale = p.kv_scales == nullptr ? 1.0f : p.kv_scales[p.kv_heads + kv_head];
  bool wrong_block = false;
  SoftmaxState states[kHeads];

  for (int64_t step = key_begin; step < key_end; step += kUnroll * keys_per_step) {
    // Load K and V: a key that the token does not see is not read; its P and its value are zero.
    const int64_t first_key = step + warp * keys_per_warp + lane / lanes_per_key;
    bool seen[kUnroll];
    Elements<Cache> k[kUnroll] = {}, v[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t key = first_key + u * keys_per_step;
      seen[u] = key < key_end;
      if (!seen[u]) continue;
      const int position = static_cast<int>(key);
      const int64_t block = table[position / block_size];
      if (block < 0 || block >= p.blocks) {
        wrong_block = true;
      } else if (holds_elements) {
        const int64_t offset = (block * block_size + position % block_size) * p.kv_heads * d;
        k[u] = *reinterpret_cast<const Elements<Cache>*>(keys + offset);
        v[u] = *reinterpret_cast<const Elements<Cache>*>(values + offset);
      }
    }

#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= heads) break;
      // S = Q K^T: each lane's part of the dot product, then over the lanes of the key.
      float s[kUnroll], m = -INFINITY;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float product = 0;
#pragma unroll
        for (int i = 0; i < kElements; ++i) product += q[h][i] * static_cast<float>(k[u].values[i]);
        for (int lanes = lanes_per_key / 2; lanes > 0; lanes /= 2)
          product += __shfl_xor_sync(kAllLanes, product, lanes);
        const float scaled = product * scale;
        const float capped = p.soft_cap > 0 ? p.soft_cap * tanhf(scaled / p.soft_cap) : scaled;
        const float distance = static_cast<float>(first_key + u * keys_per_step - place.position);
        s[u] = seen[u] ? capped + slopes[h] * distance : -INFINITY;
        m = fmaxf(m, s[u]);
      }

      // P and O = P V of these keys, merged with those before.
      float l = 0, o[kElements] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const float weight = ExpMinus(s[u], m);
        l += weight;
#pragma unroll
        for (int i = 0; i < kElements; ++i) o[i] += weight * static_cast<float>(v[u].values[i]);
      }
      Merge(states[h], m, l, o);
    }
  }

  // Merge the lanes of the warp.
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    for (int lanes = lanes_per_key; lanes < kWarpSize; lanes *= 2) {
      const float m = __shfl_xor_sync(kAllLanes, states[h].m, lanes);
      const float l = __shfl_xor_sync(kAllLanes, states[h].l, lanes);
      float o[kElements];
#pragma unroll
      for (int i = 0; i < kElements; ++i) o[i] = __shfl_xor_sync(kAllLanes, states[h].o[i], lanes);
      Merge(states[h], m, l, o);
    }
    if (lane < lanes_per_key && holds_elements) {
      warp_m[warp][h] = states[h].m;
      warp_l[warp][h] = states[h].l;
#pragma unroll
      for (int i = 0; i < kElements; ++i) warp_o[warp][h][element + i] = states[h].o[i];
    }
  }

  // Merge the warps of the CTA, and the sink.
  const bool is_wrong = __syncthreads_or(wrong_block);
  for (int i = threadIdx.x; i < heads * d; i += kThreads) {
    const int h = i / d;
    const float sink = p.sinks == nullptr ? -INFINITY : p.sinks[first_head + h];
    float m = sink, o = 0;
    for (int w = 0; w < kWarps; ++w) m = fmaxf(m, warp_m[w][h]);
    float l = ExpMinus(sink, m);
    for (int w = 0; w < kWarps; ++w) {
      const float rescale = ExpMinus(warp_m[w][h], m);
      l += rescale * warp_l[w][h];
      o += rescale * warp_o[w][h][i % d];
    }
    out[i] = static_cast<T>(is_wrong ? NAN : o * value_scale / l);
    if (lse != nullptr && i % d == 0) lse[h] = is_wrong ? NAN : m + logf(l);
  }
}

template <typename T>
static cudaError_t Launch(cudaStream_t stream, const Params& p) {
  const int64_t ctas_per_group = CeilDiv(p.heads / p.kv_heads, kHeads);
  const dim3 grid(static_cast<unsigned>(p.tokens), static_cast<unsigned>(p.kv_heads),
                  static_cast<unsigned>(ctas_per_group));
  if (p.kv_dtype == Dtype::kFloat8E4M3) {
    GenericKernel<T, __nv_fp8_e4m3><<<grid, kThreads, 0, stream>>>(p);
  } else {
    GenericKernel<T, T><<<grid, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

cudaError_t LaunchGeneric(cudaStream_t stream, const Params& params) {
  if (params.tokens == 0) return cudaSuccess;
  switch (params.dtype) {
    case Dtype::kFloat32: return Launch<float>(stream, params);
    case Dtype::kBFloat16: return Launch<__nv_bfloat16>(stream, params);
    case Dtype::kFloat16: return Launch<__half>(stream, params);
    case Dtype::kFloat8E4M3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace paged_attention
