#include "_rotary/rotary_host.h"
#include "rotary_embedding/rotary_embedding.h"

namespace rotary_embedding {

template <typename T, typename C>
static void Tokens(const Params& p, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const C* cos = pyxla::AnglesOf<C>(p, token);
    const int64_t query = token * p.heads * p.d, key = token * p.kv_heads * p.d;
    pyxla::RotateHeads(static_cast<const T*>(p.query) + query, static_cast<T*>(p.query_out) + query, p.heads, cos, p);
    pyxla::RotateHeads(static_cast<const T*>(p.key) + key, static_cast<T*>(p.key_out) + key, p.kv_heads, cos, p);
  }
}

void RotaryEmbeddingHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::DispatchFloat(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return params.table_dtype == params.dtype ? Tokens<T, T>(params, begin, end) : Tokens<T, float>(params, begin, end);
  });
}

}  // namespace rotary_embedding
