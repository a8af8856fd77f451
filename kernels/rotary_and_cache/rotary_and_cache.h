// query[t] = heads 0 to heads of qkv[t], rotated; cache[0][slot[t]] = the kv_heads after them, rotated and rounded to
// T; cache[1][slot[t]] = the last kv_heads as they are
//
//   qkv:    [tokens, heads + 2 * kv_heads, d], T, contiguous, read
//   query:  [tokens, heads, d], T, contiguous, written, also for tokens that the cache leaves out
//
// _rotary/rotary.h has the rotation, positions and table, _kv_cache/kv_store.h the cache, slots and scales; both say
// what is formed how. Test: devtool test rotary_and_cache
#pragma once

#include "_kv_cache/kv_store.h"
#include "_rotary/rotary.h"

namespace rotary_and_cache {

struct Params : pyxla::RotaryParams, pyxla::KvStoreParams {
  const void* qkv;
  void* query;
  int64_t heads;
};

// Tokens [begin, end) on the calling thread; their positions are in range, and their slots are -1 or in range.
void RotaryAndCacheHost(const Params& params, int64_t begin, int64_t end);

}  // namespace rotary_and_cache

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace rotary_and_cache {

cudaError_t LaunchRotaryAndCache(cudaStream_t stream, const Params& params);

}  // namespace rotary_and_cache
#endif
