// A thread for each item of each head of each token, without the divisions that a flat index needs.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "pyxla/ceil_div.h"

namespace pyxla {

/** Threads: x goes over items, y over heads, z over tokens. Blocks: x over items, then heads; y, then z over tokens. */
struct HeadsGrid {
  dim3 blocks;
  dim3 threads;
  unsigned item_blocks;
};

/** A grid of blocks of at most `max_threads`; no size is 0. */
inline HeadsGrid HeadsGridOf(int64_t tokens, int64_t heads, int64_t items, int64_t max_threads) {
  constexpr int64_t kMaxBlocksY = 65535, kMaxThreadsZ = 64;  // CUDA's
  const auto dimensions = [](int64_t x, int64_t y, int64_t z) {
    return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
  };
  // As even as the sizes allow: 72 heads of 8 items are two blocks of 36 heads, not one of 64 and one of 8.
  const int64_t item_blocks = CeilDiv(items, max_threads), x = CeilDiv(items, item_blocks);
  const int64_t head_blocks = CeilDiv(heads, max_threads / x), y = CeilDiv(heads, head_blocks);
  const int64_t z = head_blocks > 1 ? 1 : std::min({max_threads / (x * y), kMaxThreadsZ, tokens});
  const int64_t token_blocks = CeilDiv(tokens, z), layers = CeilDiv(token_blocks, kMaxBlocksY);
  return {dimensions(head_blocks * item_blocks, CeilDiv(token_blocks, layers), layers), dimensions(x, y, z),
          static_cast<unsigned>(item_blocks)};
}

/** The place of a thread of a HeadsGrid; each number may exceed the last one. */
struct HeadsPlace {
  int64_t token;
  int64_t head;
  int64_t item;
};

/** This thread's place; `item_blocks` is that of its grid. */
__device__ inline HeadsPlace PlaceOfThread(unsigned item_blocks) {
  const unsigned head_block = item_blocks == 1 ? blockIdx.x : blockIdx.x / item_blocks;
  const unsigned item_block = blockIdx.x - head_block * item_blocks;
  return {(static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * blockDim.z + threadIdx.z,
          static_cast<int64_t>(head_block) * blockDim.y + threadIdx.y,
          static_cast<int64_t>(item_block) * blockDim.x + threadIdx.x};
}

}  // namespace pyxla
