// cache[0][slot[t]][h][i] = key[t][h][i] / scale[0][h], cache[1][slot[t]][h][i] = value[t][h][i] / scale[1][h]
//
//   key, value:   [tokens, kv_heads, d], T, contiguous, read
//   cache:        [2, slots, kv_heads, d], T or float8 (e4m3fn), contiguous, written; slots = blocks * block_size
//   slot_mapping: [tokens], int32 or int64, read
//   kv_scales:    [2, kv_heads], float, read; null: ones. Only with a float8 cache
//
// T is float, bfloat16 or float16. A token whose slot is -1 is left out. Other slots outside of [0, slots) are refused
// on the host and left out on the GPU. What goes into float8 saturates at +-448. Any sizes; offsets are
// 64-bit. Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
// 2023, arXiv:2309.06180; float8: Micikevicius et al., "FP8 Formats for Deep Learning", 2022, arXiv:2209.05433. Test:
// devtool test reshape_and_cache
#pragma once

#include <cstdint>

#include "common/float_type.h"

namespace reshape_and_cache {

struct Params {
  const void* key;
  const void* value;
  void* cache;
  const void* slot_mapping;
  const float* kv_scales;
  int64_t tokens;
  int64_t slots;
  int64_t kv_heads;
  int64_t d;
  pyxla::FloatType dtype;
  bool float8_cache;
  bool wide_slots;  // int64
};

// A token's slot.
int64_t SlotOf(const Params& params, int64_t token);

// Tokens [begin, end) on the calling thread; their slots are -1 or in range.
void ReshapeAndCacheHost(const Params& params, int64_t begin, int64_t end);

}  // namespace reshape_and_cache

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace reshape_and_cache {

cudaError_t LaunchReshapeAndCache(cudaStream_t stream, const Params& params);

}  // namespace reshape_and_cache
#endif
