#include "_kv_cache/kv_store_host.h"
#include "reshape_and_cache/reshape_and_cache.h"

namespace reshape_and_cache {

template <typename T, typename C>
static void Tokens(const Params& p, int64_t begin, int64_t end) {
  const int64_t row = p.kv_heads * p.d;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = p.slot_mapping[token];
    if (slot == -1) continue;
    pyxla::StoreToken(static_cast<const T*>(p.key) + token * row, static_cast<const T*>(p.value) + token * row,
                      static_cast<C*>(p.cache), slot, p.d, p);
  }
}

void ReshapeAndCacheHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::DispatchFloat(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return params.float8_cache ? Tokens<T, pyxla::CachedFloat8>(params, begin, end) : Tokens<T, T>(params, begin, end);
  });
}

}  // namespace reshape_and_cache
