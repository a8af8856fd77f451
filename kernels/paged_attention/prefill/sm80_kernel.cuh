// Prefill with mma.sync and cp.async: any GPU from sm_80 on, any head_dim (padded to kHeadDim with zeros), any block
// size. One CTA of four warps: one tile of rows of one kv head, over KV tiles of kKeys keys from the last to the first.
// All warps load and compute. Q, K and V have one stage each; V of a KV tile is copied during Q K^T, the next K during
// P V:
//
//   wait K, __syncthreads, start V | S = Q K^T | wait V, __syncthreads, start next K | softmax | O += P V
//
// Before each __syncthreads, a thread converts what it has copied of a float8 cache.
//
// After Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
// arXiv:2307.08691.
#pragma once

#include "paged_attention/prefill/epilogue.cuh"
#include "pyxla/device/ptx/cp_async.cuh"
#include "pyxla/device/ptx/ldmatrix.cuh"
#include "pyxla/device/ptx/mma.cuh"

namespace paged_attention {
namespace prefill {
namespace sm80 {

constexpr int kWarps = 4, kThreads = kWarps * kWarpSize;
constexpr int kKeys = 64;
static_assert(kKeys <= kThreads, "a thread looks up the slot of one key");

template <int kHeadDim>
struct Shape {
  // The 16-row MMA tiles of a warp: two share each load of K and V where the registers suffice.
  static constexpr int kRowTiles = kHeadDim <= 128 ? 2 : 1;
  static constexpr int kWarpRows = 16 * kRowTiles, kRows = kWarps * kWarpRows;
  static constexpr int kSharedBytes = (kRows + 2 * kKeys) * kHeadDim * 2;
};

// A matrix of rows of kHeadDim elements; the 16-byte chunks of a row are permuted within 128 bytes, so that eight rows'
// chunks of a column are in different banks. From an even chunk of a row, the address of chunk + c is address ^ 16 * c,
// and that of row + r, r a multiple of 8, is address + r * kRowBytes.
template <int kHeadDim>
struct SmemTile {
  static constexpr int kChunks = kHeadDim / kChunk, kRowBytes = kHeadDim * 2;
  uint32_t base;
  __device__ uint32_t At(int row, int chunk) const { return base + row * kRowBytes + (chunk ^ (row % 8)) * 16; }
};

// Where a key is in the cache, in elements; or why it is not read.
constexpr int64_t kUnseen = -1, kWrongBlock = -2;

__device__ inline int64_t FindSlot(const Params& p, const Tile& tile, int64_t kv_head, int key) {
  if (key < tile.key_begin || key >= tile.key_end) return kUnseen;
  const int block_size = static_cast<int>(p.block_size);
  const int64_t block = p.block_tables[tile.seq * p.max_blocks + key / block_size];
  if (block < 0 || block >= p.blocks) return kWrongBlock;
  return ((block * block_size + key % block_size) * p.kv_heads + kv_head) * p.head_dim;
}

// A thread's part of each copy of K or V: 16 bytes of a row of the cache. What it copies of float8 lies in one of the
// two chunks that it becomes: the second one for half of eight lanes, so that these use all banks.
template <typename Kv, int kHeadDim>
struct Copy {
  static constexpr bool kIsFloat8 = std::is_same_v<Kv, __nv_fp8_e4m3>;
  static constexpr int kElements = 16 / sizeof(Kv), kThreadsPerRow = kHeadDim / kElements;
  static constexpr int kRowsPerPass = kThreads / kThreadsPerRow, kPasses = kKeys / kRowsPerPass;
  static_assert(kThreads % kThreadsPerRow == 0 && kKeys % kRowsPerPass == 0, "the threads copy whole rows");

  int column = threadIdx.x % kThreadsPerRow * kElements, first_row = threadIdx.x / kThreadsPerRow;
  int chunk = column / kChunk + (kIsFloat8 && threadIdx.x % kThreadsPerRow % 8 >= 4 ? 1 : 0);
};

// Unseen keys and values become zeros. Keys of a page that does not exist become NaN, which reaches only the rows that
// see them.
template <typename Kv, int kHeadDim>
__device__ inline void LoadKeys(const Params& p, const Kv* cache, const int64_t (&slots)[kKeys], bool is_key,
                                SmemTile<kHeadDim> to) {
  const Copy<Kv, kHeadDim> copy;
  const bool is_inside = copy.column < p.head_dim;
#pragma unroll 4
  for (int pass = 0; pass < copy.kPasses; ++pass) {
    const int row = pass * copy.kRowsPerPass + copy.first_row;
    const int64_t slot = slots[row];
    const bool is_read = is_inside && slot >= 0;
    if (is_key && slot == kWrongBlock) {
      st_shared_v4(to.At(row, copy.chunk), 0xffffffff);  // NaN in each dtype
    } else {
      cp_async_zfill(to.At(row, copy.chunk), is_read ? cache + slot + copy.column : cache, is_read);
    }
  }
}

// What the thread has copied, from float8 to T.
template <typename T, int kHeadDim>
__device__ inline void ConvertKeys(SmemTile<kHeadDim> tile) {
  const Copy<__nv_fp8_e4m3, kHeadDim> copy;
  const int second = copy.chunk % 2;
#pragma unroll
  for (int pass = 0; pass < copy.kPasses; ++pass) {
    const int row = pass * copy.kRowsPerPass + copy.first_row;
    uint32_t sixteen[4];
    ld_shared_v4(sixteen, tile.At(row, copy.chunk));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t four = i == second ? sixteen[j / 2] : sixteen[2 + j / 2];
        words[j] = E4m3x2To<T>(j % 2 == 0 ? four & 0xffff : four >> 16);
      }
      st_shared_v4(tile.At(row, copy.chunk - second + (i ^ second)), words);
    }
  }
}

// O += P V; the address is a lane's of ldmatrix, of the first 16 keys.
template <typename T, int kHeadDim, int kRowTiles>
__device__ inline void GemmPv(const uint32_t (&p_frag)[kRowTiles][kKeys / 8][2], uint32_t v_address,
                              float (&o)[kRowTiles][kHeadDim / 8][4]) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; j += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, (v_address ^ 16 * j) + k * 16 * SmemTile<kHeadDim>::kRowBytes);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        const uint32_t a[4] = {p_frag[m][2 * k][0], p_frag[m][2 * k][1], p_frag[m][2 * k + 1][0],
                               p_frag[m][2 * k + 1][1]};
        mma_m16n8k16<T>(o[m][j], a, b[0], b[1]);
        mma_m16n8k16<T>(o[m][j + 1], a, b[2], b[3]);
      }
    }
  }
}

template <typename T, typename Kv, int kHeadDim>
__global__ void __launch_bounds__(kThreads) PrefillKernel(const Params p, const Plan plan) {
  using S = Shape<kHeadDim>;
  constexpr int kRowTiles = S::kRowTiles, kColumns = kHeadDim / 8, kKeyColumns = kKeys / 8;
  constexpr bool kIsFloat8 = std::is_same_v<Kv, __nv_fp8_e4m3>;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ int64_t slots[2][kKeys];
  __shared__ uint8_t has_nonfinite[kKeys];
  __shared__ TileScheduler<S::kRows, kThreads> tiles;
  const SmemTile<kHeadDim> query{shared_address(shared)}, keys{query.base + S::kRows * kHeadDim * 2},
      values{keys.base + kKeys * kHeadDim * 2};
  const int thread = threadIdx.x, warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int kv_head = static_cast<int>(blockIdx.y);

  // Tiles at the end of a sequence see the most keys and come first.
  const int count = tiles.Count(p, plan);
  if (blockIdx.x >= count) return;
  const Tile tile = tiles.Find(p, plan, count - 1 - static_cast<int>(blockIdx.x));

  const Kv* key_cache = static_cast<const Kv*>(p.kv_cache);
  const Kv* value_cache = key_cache + p.blocks * p.block_size * p.kv_heads * p.head_dim;
  const int first = tile.key_begin / kKeys, last = (tile.key_end - 1) / kKeys;

  // The slots of the last keys, and Q.
  if (thread < kKeys) slots[last % 2][thread] = FindSlot(p, tile, kv_head, last * kKeys + thread);
  for (int i = thread; i < S::kRows * query.kChunks; i += kThreads) {
    const int row = i / query.kChunks, chunk = i % query.kChunks;
    const bool is_inside = chunk * kChunk < p.head_dim;
    const T* from = static_cast<const T*>(p.query) + FindRow(plan, tile, kv_head, row).index * p.head_dim;
    cp_async_zfill(query.At(row, chunk), from + (is_inside ? chunk * kChunk : 0), is_inside);
  }
  __syncthreads();
  LoadKeys(p, key_cache, slots[last % 2], true, keys);

  const bool is_scaled = kIsFloat8 && p.kv_scales != nullptr;
  const ScoreMod score_mod(p, is_scaled ? p.scale * p.kv_scales[kv_head] : p.scale);
  const float value_scale = is_scaled ? p.kv_scales[p.kv_heads + kv_head] : 1.0f;
  const uint32_t q_address = query.At(warp * S::kWarpRows + lane % 16, lane / 16);
  const uint32_t k_address = keys.At(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t v_address = values.At(lane % 16, lane / 16);
  const auto find_row = [&](int m, int r) {
    return FindRow(plan, tile, kv_head, warp * S::kWarpRows + m * 16 + r * 8 + lane / 4);
  };
  int positions[kRowTiles][2];
  Softmax softmax[kRowTiles];
  float o[kRowTiles][kColumns][4] = {};
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) positions[m][r] = find_row(m, r).position;
  }

  for (int t = last; t >= first; --t) {
    // K has arrived, and no warp needs the previous V: load V, and look up the next slots.
    cp_async_commit_group();
    cp_async_wait_group<0>();
    if constexpr (kIsFloat8) ConvertKeys<T>(keys);
    __syncthreads();
    LoadKeys(p, value_cache, slots[t % 2], false, values);
    int64_t next_slot = kUnseen;
    if (t > first && thread < kKeys) next_slot = FindSlot(p, tile, kv_head, (t - 1) * kKeys + thread);

    // S = Q K^T.
    float s[kRowTiles][kKeyColumns][4] = {};
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) ldmatrix_x4(a[m], (q_address ^ 32 * k) + m * 16 * query.kRowBytes);
#pragma unroll
      for (int j = 0; j < kKeyColumns; j += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, (k_address ^ 32 * k) + j * 8 * keys.kRowBytes);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma_m16n8k16<T>(s[m][j], a[m], b[0], b[1]);
          mma_m16n8k16<T>(s[m][j + 1], a[m], b[2], b[3]);
        }
      }
    }
    if (t > first && thread < kKeys) slots[(t - 1) % 2][thread] = next_slot;

    // V has arrived, and no warp needs K: load the next K.
    cp_async_commit_group();
    cp_async_wait_group<0>();
    if constexpr (kIsFloat8) ConvertKeys<T>(values);
    __syncthreads();
    if (t > first) LoadKeys(p, key_cache, slots[(t - 1) % 2], true, keys);
    const bool is_full = IsFull<kKeys>(p, tile, t);
    bool any_nonfinite = false;
    if (!is_full) {
      if (thread < kKeys) {
        const auto at = [&](int chunk) { return values.At(thread, chunk); };
        any_nonfinite = has_nonfinite[thread] = ZeroNonFinite<T, values.kChunks>(at);
      }
      any_nonfinite = __syncthreads_or(any_nonfinite);
    }

    // S becomes P, and O is rescaled.
    uint32_t p_frag[kRowTiles][kKeyColumns][2];
    const int key = t * kKeys + 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if (!score_mod.is_plain) {
        float slopes[2] = {};
        for (int r = 0; r < 2 && p.alibi_slopes; ++r) slopes[r] = p.alibi_slopes[find_row(m, r).head];
        score_mod.Apply(s[m], positions[m], slopes, key);
      }
      if (!is_full) score_mod.Mask(s[m], positions[m], key);
      float rescale[2];
      softmax[m].Online(s[m], score_mod.factor, rescale);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][j][i] *= rescale[i / 2];
      }
#pragma unroll
      for (int j = 0; j < kKeyColumns; ++j) {
        p_frag[m][j][0] = Pack<T>(s[m][j][0], s[m][j][1]);
        p_frag[m][j][1] = Pack<T>(s[m][j][2], s[m][j][3]);
      }
    }

    // O += P V.
    GemmPv<T, kHeadDim>(p_frag, v_address, o);
    for (int i = 0; any_nonfinite && i < kKeys; ++i) {
      if (!has_nonfinite[i]) continue;
      const Kv* nonfinite = value_cache + FindSlot(p, tile, kv_head, t * kKeys + i);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
        AddNonFinite(o[m], nonfinite, positions[m], score_mod.window, t * kKeys + i, static_cast<int>(p.head_dim));
    }
  }

#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const Row rows[2] = {find_row(m, 0), find_row(m, 1)};
    StoreRows<T>(p, o[m], rows, softmax[m], score_mod.factor, value_scale);
  }
}

template <typename T, typename Kv, int kHeadDim>
cudaError_t Launch(cudaStream_t stream, const Params& p) {
  using S = Shape<kHeadDim>;
  const auto kernel = PrefillKernel<T, Kv, kHeadDim>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  const dim3 grid(static_cast<unsigned>(MaxTiles(p, S::kRows)), static_cast<unsigned>(p.kv_heads));
  if (error != cudaSuccess || grid.x == 0) return error;
  kernel<<<grid, kThreads, S::kSharedBytes, stream>>>(p, Plan(p, kThreads));
  return cudaGetLastError();
}

}  // namespace sm80
}  // namespace prefill
}  // namespace paged_attention
