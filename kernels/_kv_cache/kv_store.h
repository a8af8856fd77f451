// cache[0][slot[t]][h][i] = key[t][h][i] / scale[0][h], cache[1][slot[t]][h][i] = value[t][h][i] / scale[1][h]
//
//   cache:        [2, slots, kv_heads, d], T or float8 (e4m3fn), contiguous, written; slots = blocks * block_size
//   slot_mapping: [tokens], int32 or int64, read
//   kv_scales:    [2, kv_heads], float, read; null: ones. Only with a float8 cache
//
// T, of keys and values, is float, bfloat16 or float16. A token whose slot is -1 is left out. Other slots outside of
// [0, slots) are refused on the host and left out on the GPU. What goes into float8 saturates at +-448. Any sizes;
// offsets are 64-bit. Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
// PagedAttention", 2023, arXiv:2309.06180; float8: Micikevicius et al., "FP8 Formats for Deep Learning", 2022,
// arXiv:2209.05433.
#pragma once

#include <cstdint>

#include "pyxla/indices.h"

namespace pyxla {

/** What the ops that write keys and values into a paged cache take of it; the pointers as above. */
struct KvStoreParams {
  void* cache;
  Indices slot_mapping;
  const float* kv_scales;
  int64_t slots;
  int64_t kv_heads;
  bool float8_cache;
};

}  // namespace pyxla
