// Prefill with wgmma and tensor maps: sm_90a, head_dim a multiple of 64, block_size a multiple of 8. A persistent block
// of three warpgroups takes tiles of 128 rows of one kv head, over tiles of kKeys keys from the last to the first. One
// warpgroup loads; the two others compute 64 rows each and take turns, so that the tensor cores have one's products
// while the other one forms weights; each also forms weights while its own products with values run. After Shah et al.,
// "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", 2024, arXiv:2407.08608.
#pragma once

#include "common/device/tensor_map.h"
#include "paged_attention/paged_attention_prefill_loads.cuh"

namespace paged_attention {
namespace prefill {
namespace wgmma {

// A warpgroup that computes 64 rows of each tile.
template <typename T, int kHeadDim>
__device__ inline void Compute(const Params& p, const Plan& plan, Shared& shared, uint32_t queries, uint32_t keys,
                               uint32_t values) {
  using S = Shape<kHeadDim>;
  constexpr int kColumns = kHeadDim / 8, kKeyColumns = S::kKeys / 8;
  const int warpgroup = threadIdx.x / kWarpgroup, lane = threadIdx.x % kWarpSize;
  const int first_row = threadIdx.x / kWarpSize * 16 + lane / 4;
  const Logits logits(p);
  Ring<> work_ring, key_ring, value_ring;
  Ring<S::kQueryStages> query_ring;
  uint32_t clean_parities = 0;  // a bit for each stage

  // Turns: named barrier 1 + w lets warpgroup w start its products.
  const auto wait_for_turn = [&] { Sync(1 + warpgroup, kComputers); };
  const auto give_turn = [&] { ArriveAt(2 - warpgroup, kComputers); };
  if (warpgroup == 1) give_turn();

  for (;;) {
    const Work work = TakeWork(shared, work_ring);
    const Tile& tile = work.tile;
    if (work.is_last) return;

    const auto find_row = [&](int r) { return FindRow(plan, tile, work.kv_head, first_row + 8 * r); };
    const int positions[2] = {find_row(0).position, find_row(1).position};
    const int first = tile.key_begin / S::kKeys, last = (tile.key_end - 1) / S::kKeys;
    float s[kKeyColumns][4], out[kColumns][4] = {}, decay[2];
    uint32_t weights[kKeyColumns / 2][4];
    Softmax softmax;

    const auto multiply_keys = [&] {
      const Matrix<kHeadDim> stage{Uniform(keys + key_ring.Stage() * S::kTileBytes)};
      const uint32_t query = queries + query_ring.Stage() * S::kQueryBytes;
      const Matrix<kHeadDim> mine{Uniform(query + warpgroup * 8 * stage.kGroupBytes)};
      BeginProducts();
#pragma unroll
      for (int k = 0; k < kHeadDim; k += 16) MultiplyColumns<T>(s, mine.Columns(k), stage.Columns(k), k > 0);
      CommitProducts();
    };
    const auto wait_for_values = [&](int t) {
      if (IsFull<S::kKeys>(p, tile, t)) {
        Wait(At(shared.values_full, value_ring), value_ring.Parity());
      } else {
        Wait(At(shared.values_clean, value_ring), clean_parities >> value_ring.Stage() & 1);
        clean_parities ^= 1 << value_ring.Stage();
      }
    };
    const auto finish_values = [&](int t) {
      if (!IsFull<S::kKeys>(p, tile, t)) {
        const uint8_t (&is_spoiled)[128] = shared.is_spoiled[value_ring.Stage()];
        for (int i = 0; i < S::kKeys; i += kWarpSize) {
          for (unsigned found = __ballot_sync(kAllLanes, is_spoiled[i + lane]); found; found &= found - 1) {
            const int key = t * S::kKeys + i + __ffs(found) - 1;
            const int64_t block = p.block_tables[tile.seq * p.max_blocks + key / p.block_size];
            const int64_t slot = (p.blocks + block) * p.block_size + key % p.block_size;
            const T* from = static_cast<const T*>(p.kv_cache) + (slot * p.kv_heads + work.kv_head) * kHeadDim;
            AddNotFinite(out, from, positions, logits.window, key, kHeadDim);
          }
        }
      }
      Arrive(At(shared.values_empty, value_ring));
      ++value_ring.count;
    };
    const auto multiply_values = [&] {
      const Matrix<kHeadDim> stage{Uniform(values + value_ring.Stage() * S::kTileBytes)};
      BeginProducts();
#pragma unroll
      for (int k = 0; k < S::kKeys; k += 16) {
        if constexpr (kHeadDim % 128 == 0) {
          MultiplyRows<T, 0, 16>(out, weights[k / 16], stage.Rows(k, 0));
          if constexpr (kHeadDim == 256) MultiplyRows<T, 16, 16>(out, weights[k / 16], stage.Rows(k, 128));
        } else {
          MultiplyRows<T, 0, 8>(out, weights[k / 16], stage.Rows(k, 0));
          if constexpr (kHeadDim == 192) {
            MultiplyRows<T, 8, 8>(out, weights[k / 16], stage.Rows(k, 64));
            MultiplyRows<T, 16, 8>(out, weights[k / 16], stage.Rows(k, 128));
          }
        }
      }
      CommitProducts();
    };
    // Products of queries and keys become weights.
    const auto weigh = [&](int t) {
      const int key = t * S::kKeys + 2 * (lane % 4);
      if (!logits.is_plain) {
        float slopes[2] = {};
        for (int r = 0; r < 2 && p.alibi_slopes; ++r) slopes[r] = p.alibi_slopes[find_row(r).head];
        logits.Apply(s, positions, slopes, key);
      }
      if (!IsFull<S::kKeys>(p, tile, t)) logits.Mask(s, positions, key);
      softmax.Add(s, logits.factor, decay);
    };
    const auto pack = [&] {
#pragma unroll
      for (int j = 0; j < kKeyColumns; ++j) {
        weights[j / 2][j % 2 * 2] = Pack<T>(s[j][0], s[j][1]);
        weights[j / 2][j % 2 * 2 + 1] = Pack<T>(s[j][2], s[j][3]);
      }
    };

    // The last keys.
    Wait(At(shared.query_full, query_ring), query_ring.Parity());
    Wait(At(shared.keys_full, key_ring), key_ring.Parity());
    multiply_keys();
    WaitForProducts<0>();
    Hold(s);
    Arrive(At(shared.keys_empty, key_ring));
    ++key_ring.count;
    weigh(last);
    pack();

    // Products with the keys of tile t and with the values of the one behind it run together.
    for (int t = last - 1; t >= first; --t) {
      Wait(At(shared.keys_full, key_ring), key_ring.Parity());
      wait_for_turn();
      multiply_keys();
      wait_for_values(t + 1);
      multiply_values();
      give_turn();
      WaitForProducts<1>();
      Hold(s);
      Arrive(At(shared.keys_empty, key_ring));
      ++key_ring.count;
      weigh(t);
      // Weights are not negative, so this is never taken. But it is a branch that needs them, without which ptxas forms
      // them behind the wait.
      if (softmax.sum[0] < 0 || softmax.sum[1] < 0) __trap();
      WaitForProducts<0>();
      Hold(out);
      finish_values(t + 1);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[j][i] *= decay[i / 2];
      }
      pack();
    }
    Arrive(At(shared.query_empty, query_ring));
    ++query_ring.count;

    // The first values.
    wait_for_values(first);
    multiply_values();
    WaitForProducts<0>();
    Hold(out);
    finish_values(first);
    const Row rows[2] = {find_row(0), find_row(1)};
    WriteRows<T>(p, out, rows, softmax, logits.factor);
  }
}

// Other GPUs' code for it is empty: it uses no shared memory, by which the host knows.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    PrefillKernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ Params p,
                  const __grid_constant__ Plan plan, int piece_keys) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shape<kHeadDim>;
  extern __shared__ uint8_t dynamic[];
  __shared__ Shared shared;
  const uint32_t base = (SharedAddress(dynamic) + 1023) / 1024 * 1024;
  const uint32_t keys = base + S::kQueryStages * S::kQueryBytes, values = keys + kStages * S::kTileBytes;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(SharedAddress(&shared.keys_full[i]), 1);
      InitBarrier(SharedAddress(&shared.keys_empty[i]), kComputers);
      InitBarrier(SharedAddress(&shared.values_full[i]), 1);
      InitBarrier(SharedAddress(&shared.values_empty[i]), kComputers + kCleaners);
      InitBarrier(SharedAddress(&shared.values_clean[i]), kCleaners);
      InitBarrier(SharedAddress(&shared.work_full[i]), 1);
      InitBarrier(SharedAddress(&shared.work_empty[i]), kThreads - kWarpSize);
      InitBarrier(SharedAddress(&shared.query_full[i]), kWarpSize);
      InitBarrier(SharedAddress(&shared.query_empty[i]), kComputers);
    }
    InitBarrier(SharedAddress(&shared.loads_begun), 1);
    FenceForAsync();
  }
  const int count = shared.tiles.Count(p, plan);

  if (threadIdx.x < kComputers) {
    TakeRegisters<232>();
    Compute<T, kHeadDim>(p, plan, shared, base, keys, values);
  } else {
    GiveRegisters<40>();
    if (threadIdx.x < kComputers + kWarpSize) {
      Choose<T, kHeadDim>(p, plan, shared, base, count);
    } else if (threadIdx.x < kThreads - kCleaners) {
      Load<T, kHeadDim>(p, map, shared, keys, values, piece_keys);
    } else {
      Clean<T, kHeadDim>(p, shared, values);
    }
  }
#endif
}

// The cache as [kv_heads][rows / 8][head_dim / 64][8][64], rows = 2 * blocks * block_size; a box is a piece of one
// head.
template <typename T, int kHeadDim>
cudaError_t MakeMap(const Params& p, int piece_keys, CUtensorMap* map) {
  const int64_t row = p.kv_heads * kHeadDim, rows = 2 * p.blocks * p.block_size;
  const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return pyxla::MakeTensorMap(p.kv_cache, type,
                              {{64, 1, 64},
                               {8, row, 8},
                               {kHeadDim / 64, 64, kHeadDim / 64},
                               {rows / 8, 8 * row, piece_keys / 8},
                               {p.kv_heads, kHeadDim, 1}},
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, map);
}

// Whether the kernel is there for this GPU and takes these arguments; if so, launches it.
template <typename T, int kHeadDim>
cudaError_t Launch(cudaStream_t stream, const Params& p, bool* launched) {
  using S = Shape<kHeadDim>;
  const auto kernel = PrefillKernel<T, kHeadDim>;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  *launched = attributes.sharedSizeBytes > 0 && p.block_size % 8 == 0 && p.blocks > 0;
  if (error != cudaSuccess || !*launched) return error;

  int piece_keys = 8;
  while (piece_keys < S::kKeys && p.block_size % (2 * piece_keys) == 0) piece_keys *= 2;
  CUtensorMap map;
  error = MakeMap<T, kHeadDim>(p, piece_keys, &map);
  if (error != cudaSuccess) return error;
  int device, processors;
  error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (error != cudaSuccess) return error;
  const int64_t most = MaxTiles(p, kRows) * p.kv_heads;
  if (most == 0) return cudaSuccess;
  // The tiles taken, beyond one for each block.
  error = cudaMemsetAsync(p.workspace, 0, sizeof(unsigned), stream);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(most < processors ? most : processors), kThreads, S::kSharedBytes, stream>>>(
      map, p, Plan(p, kThreads), piece_keys);
  return cudaGetLastError();
}

}  // namespace wgmma
}  // namespace prefill
}  // namespace paged_attention
