#include <vector>

#include "_kv_cache/kv_store_host.h"
#include "_rotary/rotary_host.h"
#include "rotary_and_cache/rotary_and_cache.h"

namespace rotary_and_cache {

// Table, of C, and cache, of K.
template <typename T, typename C, typename K>
static void Tokens(const Params& p, int64_t begin, int64_t end) {
  const int64_t query_elements = p.heads * p.d, row = p.kv_heads * p.d;
  std::vector<T> rotated(row);  // a token's keys, as T before they become float8
  for (int64_t token = begin; token < end; ++token) {
    const C* cos = pyxla::AnglesOf<C>(p, token);
    const T* query = static_cast<const T*>(p.qkv) + token * (query_elements + 2 * row);
    const T* key = query + query_elements;
    pyxla::RotateHeads(query, static_cast<T*>(p.query) + token * query_elements, p.heads, cos, p);
    const int64_t slot = p.slot_mapping[token];
    if (slot == -1) continue;
    pyxla::RotateHeads(key, rotated.data(), p.kv_heads, cos, p);
    pyxla::StoreToken(static_cast<const T*>(rotated.data()), key + row, static_cast<K*>(p.cache), slot, p.d, p);
  }
}

void RotaryAndCacheHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::DispatchFloat(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto with_table_of = [&](auto table) {
      using C = typename decltype(table)::type;
      params.float8_cache ? Tokens<T, C, pyxla::CachedFloat8>(params, begin, end) : Tokens<T, C, T>(params, begin, end);
    };
    params.table_dtype == params.dtype ? with_table_of(tag) : with_table_of(pyxla::DtypeTag<float>());
  });
}

}  // namespace rotary_and_cache
