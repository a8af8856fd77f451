// Rotates heads on the host.
#pragma once

#include <algorithm>

#include "_rotary/rotary.h"
#include "pyxla/host/dtype.h"

namespace pyxla {

/** The angles of a token, whose position is in range: its cosines, then its sines. */
template <typename C>
const C* AnglesOf(const RotaryParams& p, int64_t token) {
  return static_cast<const C*>(p.cos_sin_cache) + p.positions[token] * p.rot_dim;
}

/** Consecutive heads of one token; `out` may be `in`. */
template <typename T, typename C>
void RotateHeads(const T* in, T* out, int64_t heads, const C* cos, const RotaryParams& p) {
  const int64_t pairs = p.rot_dim / 2, step = p.interleaved ? 2 : 1, partner = p.interleaved ? 1 : pairs;
  const C* sin = cos + pairs;
  for (int64_t head = 0; head < heads; ++head, in += p.d, out += p.d) {
    for (int64_t j = 0; j < pairs; ++j) {
      const int64_t a = step * j, b = a + partner;
      const float x = ToFloat(in[a]), y = ToFloat(in[b]);
      const float c = ToFloat(cos[j]), s = ToFloat(sin[j]);
      out[a] = FromFloat<T>(x * c - y * s);
      out[b] = FromFloat<T>(y * c + x * s);
    }
    if (in != out) std::copy(in + p.rot_dim, in + p.d, out + p.rot_dim);
  }
}

}  // namespace pyxla
