// cache[0][slot[t]] = key[t], cache[1][slot[t]] = value[t]
//
//   key, value:   [tokens, kv_heads, d], T, contiguous, read
//
// _kv_cache/kv_store.h has the cache, slots and scales, and what is formed how. Test: devtool test reshape_and_cache
#pragma once

#include <cstdint>

#include "_kv_cache/kv_store.h"
#include "pyxla/float_type.h"

namespace reshape_and_cache {

struct Params : pyxla::KvStoreParams {
  const void* key;
  const void* value;
  int64_t tokens;
  int64_t d;
  pyxla::FloatType dtype;
};

// Tokens [begin, end) on the calling thread; their slots are -1 or in range.
void ReshapeAndCacheHost(const Params& params, int64_t begin, int64_t end);

}  // namespace reshape_and_cache

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace reshape_and_cache {

cudaError_t LaunchReshapeAndCache(cudaStream_t stream, const Params& params);

}  // namespace reshape_and_cache
#endif
