#include <algorithm>

#include "common/dtype.h"
#include "rotary_embedding/rotary_embedding.h"

namespace rotary_embedding {

// All heads of one token.
template <typename T, typename C>
static void Rotate(const T* in, T* out, int64_t heads, const C* cos, const Params& p) {
  const int64_t pairs = p.rot_dim / 2, step = p.interleaved ? 2 : 1, partner = p.interleaved ? 1 : pairs;
  const C* sin = cos + pairs;
  for (int64_t head = 0; head < heads; ++head, in += p.d, out += p.d) {
    for (int64_t j = 0; j < pairs; ++j) {
      const int64_t a = step * j, b = a + partner;
      const float x = pyxla::ToFloat(in[a]), y = pyxla::ToFloat(in[b]);
      const float c = pyxla::ToFloat(cos[j]), s = pyxla::ToFloat(sin[j]);
      out[a] = pyxla::FromFloat<T>(x * c - y * s);
      out[b] = pyxla::FromFloat<T>(y * c + x * s);
    }
    if (in != out) std::copy(in + p.rot_dim, in + p.d, out + p.rot_dim);
  }
}

template <typename T, typename C>
static void Tokens(const Params& p, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const C* cos = static_cast<const C*>(p.cos_sin_cache) + PositionOf(p, token) * p.rot_dim;
    const int64_t query = token * p.heads * p.d, key = token * p.kv_heads * p.d;
    Rotate(static_cast<const T*>(p.query) + query, static_cast<T*>(p.query_out) + query, p.heads, cos, p);
    Rotate(static_cast<const T*>(p.key) + key, static_cast<T*>(p.key_out) + key, p.kv_heads, cos, p);
  }
}

int64_t PositionOf(const Params& params, int64_t token) {
  return params.wide_positions ? static_cast<const int64_t*>(params.positions)[token]
                               : static_cast<const int32_t*>(params.positions)[token];
}

void RotaryEmbeddingHost(const Params& params, int64_t begin, int64_t end) {
  pyxla::DispatchFloat(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return params.cache_dtype == params.dtype ? Tokens<T, T>(params, begin, end) : Tokens<T, float>(params, begin, end);
  });
}

}  // namespace rotary_embedding
