#include <algorithm>
#include <cmath>
#include <vector>

#include "_kv_cache/kv_store_host.h"
#include "_rotary/rotary_host.h"
#include "fused_decoder_layer/fused_decoder_layer.h"
#include "pyxla/host/multiversion.h"

namespace fused_decoder_layer {
namespace {

// k is multiplied in blocks of kBlockK, in kLanes independent sums that the compiler keeps in vector registers.
constexpr int kLanes = 16, kBlockK = 256;
static_assert(kGranule % kBlockK == 0 && kBlockK % kLanes == 0, "no remainder");

template <typename W>
PYXLA_INLINE void GemmColumns(const float* __restrict x, const W* __restrict weight, float* __restrict out,
                              int64_t tokens, int64_t k, int64_t columns, int64_t begin, int64_t end) {
  float values[kBlockK];
  double sums[kMaxTokens];
  for (int64_t column = begin; column < end; ++column) {
    std::fill(sums, sums + tokens, 0.0);
    for (int64_t at = 0; at < k; at += kBlockK) {
      pyxla::Convert(weight + column * k + at, values, kBlockK);
      for (int64_t token = 0; token < tokens; ++token) {
        const float* __restrict row = x + token * k + at;
        float lanes[kLanes] = {};
        for (int i = 0; i < kBlockK; i += kLanes) {
          for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += row[i + lane] * values[i + lane];
        }
        for (float lane : lanes) sums[token] += lane;
      }
    }
    for (int64_t token = 0; token < tokens; ++token) out[token * columns + column] = static_cast<float>(sums[token]);
  }
}

// Columns [begin, end) of out [tokens, columns] = x [tokens, k] * weight [columns, k]^T, which is of this dtype.
PYXLA_MULTIVERSION void Gemm(pyxla::FloatType dtype, const float* x, const void* weight, float* out, int64_t tokens,
                             int64_t k, int64_t columns, int64_t begin, int64_t end) {
  if (dtype == pyxla::FloatType::kFloat16) {
    GemmColumns(x, static_cast<const pyxla::F16*>(weight), out, tokens, k, columns, begin, end);
  } else {
    GemmColumns(x, static_cast<const pyxla::BF16*>(weight), out, tokens, k, columns, begin, end);
  }
}

// to[i] = norm(from)[i] * weight[i] of each row, [tokens, hidden].
void Norm(const Params& p, const float* from, const void* weight, float* to) {
  pyxla::DispatchFloat(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t token = 0; token < p.tokens; ++token, from += p.hidden, to += p.hidden) {
      double squares = 0;
      for (int64_t i = 0; i < p.hidden; ++i) squares += static_cast<double>(from[i]) * from[i];
      const float scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(p.hidden) + p.eps));
      for (int64_t i = 0; i < p.hidden; ++i) to[i] = from[i] * scale * pyxla::ToFloat(static_cast<const T*>(weight)[i]);
    }
  });
}

template <typename From>
std::vector<float> Floats(const From* from, int64_t n) {
  std::vector<float> floats(n);
  pyxla::Convert(from, floats.data(), n);
  return floats;
}

// Rotates queries and keys, and stores keys and values in the cache. cos_sin_cache is of C.
template <typename T, typename C>
void RotateAndStore(const RotaryAndCacheParams& p, float* qkv, T* query) {
  const int64_t query_elements = p.heads * p.d, row = p.kv_heads * p.d;
  std::vector<T> key_value(2 * row);
  for (int64_t token = 0; token < p.tokens; ++token, qkv += query_elements + 2 * row, query += query_elements) {
    pyxla::RotateHeads(qkv, qkv, p.heads + p.kv_heads, pyxla::AnglesOf<C>(p, token), p);
    pyxla::Convert(qkv, query, query_elements);
    pyxla::Convert(qkv + query_elements, key_value.data(), 2 * row);
    if (const int64_t slot = p.slot_mapping[token]; slot != -1)
      pyxla::StoreToken(key_value.data(), key_value.data() + row, static_cast<T*>(p.cache), slot, p.d, p);
  }
}

// The formula of fused_decoder_layer.h, line by line, in floats.
template <typename T>
void Run(const Params& p, const ParallelFor& parallel_for) {
  const auto gemm = [&](const std::vector<float>& x, const void* weight, int64_t k, int64_t columns) {
    constexpr int64_t kProductsPerPiece = 1 << 20;
    std::vector<float> out(p.tokens * columns);
    parallel_for(columns, kProductsPerPiece / (p.tokens * k), [&](int64_t begin, int64_t end) {
      Gemm(p.dtype, x.data(), weight, out.data(), p.tokens, k, columns, begin, end);
    });
    return out;
  };
  T* residual = static_cast<T*>(p.residual);
  std::vector<float> r = Floats(residual, p.tokens * p.hidden), h(r.size());
  const auto add = [&](const std::vector<float>& x) {
    for (size_t i = 0; i < r.size(); ++i) r[i] += x[i];
  };

  add(gemm(Floats(static_cast<const T*>(p.attention), p.tokens * p.width), p.o_proj, p.width, p.hidden));
  Norm(p, r.data(), p.post_attention_norm, h.data());
  const std::vector<float> gate_up = gemm(h, p.gate_up_proj, p.hidden, 2 * p.inner);
  std::vector<float> gated(p.tokens * p.inner);
  for (int64_t token = 0; token < p.tokens; ++token) {
    for (int64_t i = 0; i < p.inner; ++i) {
      const float gate = gate_up[token * 2 * p.inner + i], up = gate_up[(token * 2 + 1) * p.inner + i];
      gated[token * p.inner + i] = gate / (1 + std::exp(-gate)) * up;
    }
  }
  add(gemm(gated, p.down_proj, p.inner, p.hidden));
  pyxla::Convert(r.data(), residual, p.tokens * p.hidden);
  Norm(p, r.data(), p.input_norm, h.data());
  std::vector<float> out = p.qkv_proj == nullptr ? h : gemm(h, p.qkv_proj, p.hidden, p.columns);
  if (p.rotary == nullptr) {
    pyxla::Convert(out.data(), static_cast<T*>(p.out), p.tokens * p.columns);
  } else if (p.rotary->table_dtype == p.dtype) {
    RotateAndStore<T, T>(*p.rotary, out.data(), static_cast<T*>(p.out));
  } else {
    RotateAndStore<T, float>(*p.rotary, out.data(), static_cast<T*>(p.out));
  }
}

}  // namespace

void FusedDecoderLayerHost(const Params& params, const ParallelFor& parallel_for) {
  if (params.tokens == 0) return;
  pyxla::DispatchFloat(params.dtype, [&](auto tag) { Run<typename decltype(tag)::type>(params, parallel_for); });
}

}  // namespace fused_decoder_layer
