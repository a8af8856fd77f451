// Checks of paged_attention(query, kv_cache, ...) and its host handler, for the ops that compute it.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>

#include "_paged_attention/paged_attention.h"
#include "pyxla/ffi/checks.h"
#include "pyxla/host/parallel.h"

namespace pyxla {

/** The op's name, for messages, then its arguments in the order of the schema. */
struct PagedAttentionArguments {
  const char* op;
  ffi::AnyBuffer query, kv_cache, context_lens, block_tables, query_start_loc, num_seqs;
  std::optional<ffi::AnyBuffer> alibi_slopes, sinks, kv_scales;
  double scale;
  std::optional<int64_t> sliding_window;
  std::optional<double> soft_cap;
};

/** `lse` of an op that returns it. */
struct PagedAttentionResults {
  ffi::AnyBuffer out;
  std::optional<ffi::AnyBuffer> lse;
  ffi::AnyBuffer workspace;
};

namespace paged_attention_checks {

inline PagedAttentionDtype DtypeOf(const ffi::AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case ffi::BF16: return PagedAttentionDtype::kBFloat16;
    case ffi::F16: return PagedAttentionDtype::kFloat16;
    case ffi::F8E4M3FN: return PagedAttentionDtype::kFloat8E4M3;
    default: return PagedAttentionDtype::kFloat32;
  }
}

inline const int32_t* Integers(const ffi::AnyBuffer& buffer) {
  return static_cast<const int32_t*>(buffer.untyped_data());
}

inline float* Floats(const std::optional<ffi::AnyBuffer>& buffer) {
  return buffer ? static_cast<float*>(buffer->untyped_data()) : nullptr;
}

inline ffi::Error CheckQuery(const PagedAttentionArguments& a) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(a.op, "query", a.query, {ffi::F32, ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(CheckRank(a.op, "query", a.query, 3));
  const int64_t head_dim = a.query.dimensions()[2];
  if (head_dim < kPagedAttentionHeadDimUnit || head_dim > kPagedAttentionMaxHeadDim ||
      head_dim % kPagedAttentionHeadDimUnit != 0) {
    return Mismatch(a.op, "query", "a last dimension of 8, 16, ... 256", head_dim);
  }
  return ffi::Error::Success();
}

// The cache's last two dimensions may be merged; `kv_heads` follows from them.
inline ffi::Error CheckCache(const PagedAttentionArguments& a, int64_t* kv_heads) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(a.op, "kv_cache", a.kv_cache, {a.query.element_type(), ffi::F8E4M3FN}));
  const int64_t heads = a.query.dimensions()[1], head_dim = a.query.dimensions()[2];
  const auto dims = a.kv_cache.dimensions();
  if (dims.size() != 4 && dims.size() != 5) {
    return Mismatch(a.op, "kv_cache", "rank 4 or 5", "shape " + ShapeText(dims));
  }
  if (dims[0] != 2) return Mismatch(a.op, "kv_cache", "a first dimension of 2, keys and values", dims[0]);
  if (dims[2] < 1 || dims[2] > kPagedAttentionMaxBlockSize)
    return Mismatch(a.op, "kv_cache", "a block size in [1, 256]", dims[2]);
  const int64_t row = dims.size() == 4 ? dims[3] : dims[3] * dims[4];
  if ((dims.size() == 5 && dims[4] != head_dim) || row % head_dim != 0) {
    return Mismatch(a.op, "kv_cache", "heads of query's size " + std::to_string(head_dim), "shape " + ShapeText(dims));
  }
  *kv_heads = row / head_dim;
  if (*kv_heads < 1 || heads % *kv_heads != 0 || heads < 1) {
    return Mismatch(a.op, "query", "a positive multiple of " + std::to_string(*kv_heads) + " kv heads", heads);
  }
  return ffi::Error::Success();
}

inline ffi::Error CheckLengths(const PagedAttentionArguments& a) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(a.op, "context_lens", a.context_lens, {ffi::S32}));
  PYXLA_RETURN_IF_ERROR(CheckRank(a.op, "context_lens", a.context_lens, 1));
  const int64_t seqs = a.context_lens.dimensions()[0];
  PYXLA_RETURN_IF_ERROR(CheckDtype(a.op, "block_tables", a.block_tables, {ffi::S32}));
  PYXLA_RETURN_IF_ERROR(CheckRank(a.op, "block_tables", a.block_tables, 2));
  PYXLA_RETURN_IF_ERROR(CheckShape(a.op, "block_tables", a.block_tables, {seqs, a.block_tables.dimensions()[1]}));
  PYXLA_RETURN_IF_ERROR(CheckDtype(a.op, "query_start_loc", a.query_start_loc, {ffi::S32}));
  PYXLA_RETURN_IF_ERROR(CheckShape(a.op, "query_start_loc", a.query_start_loc, {seqs + 1}));
  PYXLA_RETURN_IF_ERROR(CheckDtype(a.op, "num_seqs", a.num_seqs, {ffi::S32}));
  return CheckShape(a.op, "num_seqs", a.num_seqs, {1});
}

inline ffi::Error CheckFloats(const PagedAttentionArguments& a, const char* argument,
                              const std::optional<ffi::AnyBuffer>& buffer, std::initializer_list<int64_t> shape) {
  if (!buffer) return ffi::Error::Success();
  PYXLA_RETURN_IF_ERROR(CheckDtype(a.op, argument, *buffer, {ffi::F32}));
  return CheckShape(a.op, argument, *buffer, shape);
}

inline ffi::Error CheckHeads(const PagedAttentionArguments& a, int64_t kv_heads) {
  const int64_t heads = a.query.dimensions()[1];
  PYXLA_RETURN_IF_ERROR(CheckFloats(a, "alibi_slopes", a.alibi_slopes, {heads}));
  PYXLA_RETURN_IF_ERROR(CheckFloats(a, "sinks", a.sinks, {heads}));
  PYXLA_RETURN_IF_ERROR(CheckFloats(a, "kv_scales", a.kv_scales, {2, kv_heads}));
  if (a.kv_scales && a.kv_cache.element_type() != ffi::F8E4M3FN) {
    return Mismatch(a.op, "kv_scales", "none, as kv_cache is not float8_e4m3fn", "a tensor");
  }
  return ffi::Error::Success();
}

inline ffi::Error CheckAttributes(const PagedAttentionArguments& a) {
  if (!std::isfinite(static_cast<float>(a.scale))) {
    return Mismatch(a.op, "scale", "a number that is finite in float32", a.scale);
  }
  if (a.sliding_window.value_or(1) < 1) {
    return Mismatch(a.op, "sliding_window", "a count of 1 or more", *a.sliding_window);
  }
  if (a.soft_cap && !(*a.soft_cap >= 1e-30 && *a.soft_cap <= 1e3)) {
    return Mismatch(a.op, "soft_cap", "a number in [1e-30, 1000]", *a.soft_cap);
  }
  return ffi::Error::Success();
}

}  // namespace paged_attention_checks

/** Checks the arguments and fills in what both platforms' functions take. */
inline ffi::Error MakePagedAttentionParams(const PagedAttentionArguments& a, const PagedAttentionResults& results,
                                           PagedAttentionParams* params) {
  using namespace paged_attention_checks;
  int64_t kv_heads = 0;
  PYXLA_RETURN_IF_ERROR(CheckQuery(a));
  PYXLA_RETURN_IF_ERROR(CheckCache(a, &kv_heads));
  PYXLA_RETURN_IF_ERROR(CheckLengths(a));
  PYXLA_RETURN_IF_ERROR(CheckHeads(a, kv_heads));
  PYXLA_RETURN_IF_ERROR(CheckAttributes(a));
  const auto dims = a.query.dimensions();
  PYXLA_RETURN_IF_ERROR(CheckDtype(a.op, "out", results.out, {a.query.element_type()}));
  PYXLA_RETURN_IF_ERROR(CheckShape(a.op, "out", results.out, dims));
  PYXLA_RETURN_IF_ERROR(CheckFloats(a, "lse", results.lse, {dims[0], dims[1]}));
  *params = {.query = a.query.untyped_data(),
             .kv_cache = a.kv_cache.untyped_data(),
             .context_lens = Integers(a.context_lens),
             .block_tables = Integers(a.block_tables),
             .query_start_loc = Integers(a.query_start_loc),
             .num_seqs = Integers(a.num_seqs),
             .alibi_slopes = Floats(a.alibi_slopes),
             .sinks = Floats(a.sinks),
             .kv_scales = Floats(a.kv_scales),
             .out = results.out.untyped_data(),
             .lse = Floats(results.lse),
             .workspace = results.workspace.untyped_data(),
             .tokens = dims[0],
             .heads = dims[1],
             .kv_heads = kv_heads,
             .head_dim = dims[2],
             .blocks = a.kv_cache.dimensions()[1],
             .block_size = a.kv_cache.dimensions()[2],
             .seqs = a.context_lens.dimensions()[0],
             .max_blocks = a.block_tables.dimensions()[1],
             // Positions are int32, so this window is as good as none, and sums with it stay in range.
             .window = std::min<int64_t>(a.sliding_window.value_or(INT32_MAX), INT32_MAX),
             .scale = static_cast<float>(a.scale),
             .soft_cap = static_cast<float>(a.soft_cap.value_or(0)),
             .dtype = DtypeOf(a.query),
             .kv_dtype = DtypeOf(a.kv_cache)};
  return ffi::Error::Success();
}

inline std::string Interval(const char* what, int64_t low, int64_t high, char bracket) {
  return std::string(what) + " in [" + std::to_string(low) + ", " + std::to_string(high) + bracket;
}

/** Lengths and block ids, which only the host can refuse: a cheap pass over all that will be used, before any is used.
 */
inline ffi::Error CheckPagedAttentionValues(const char* op, const PagedAttentionParams& p) {
  using std::to_string;
  const int32_t *starts = p.query_start_loc, count = p.num_seqs[0];
  if (count < 0 || count > p.seqs) {
    return Mismatch(op, "num_seqs", Interval("a count", 0, p.seqs, ']'), to_string(count));
  }
  if (starts[0] != 0) {
    return Mismatch(op, "query_start_loc", std::string("0"), to_string(starts[0]) + " at index 0");
  }
  for (int64_t seq = 0; seq < count; ++seq) {
    const int64_t start = starts[seq], end = starts[seq + 1];
    if (end < start || end > p.tokens) {
      return Mismatch(op, "query_start_loc", Interval("a row", start, p.tokens, ']'),
                      to_string(end) + " at index " + to_string(seq + 1));
    }
    const int64_t new_tokens = end - start, length = p.context_lens[seq], most = p.max_blocks * p.block_size;
    if (length < new_tokens || length > most) {
      return Mismatch(op, "context_lens", Interval("a length", new_tokens, most, ']'),
                      to_string(length) + " at sequence " + to_string(seq));
    }
    // Blocks that the sequence's first new token does not see are not read.
    const int64_t first = std::max<int64_t>(0, length - new_tokens - p.window + 1);
    for (int64_t i = first / p.block_size; new_tokens > 0 && i * p.block_size < length; ++i) {
      const int32_t block = p.block_tables[seq * p.max_blocks + i];
      if (block < 0 || block >= p.blocks) {
        return Mismatch(op, "block_tables", Interval("a block id", 0, p.blocks, ')'),
                        to_string(block) + " at sequence " + to_string(seq) + ", index " + to_string(i));
      }
    }
  }
  return ffi::Error::Success();
}

/** Binds the arguments, behind the results. */
template <typename Binding>
auto BindPagedAttentionArguments(Binding&& binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()                 // query
      .template Arg<ffi::AnyBuffer>()                 // kv_cache
      .template Arg<ffi::AnyBuffer>()                 // context_lens
      .template Arg<ffi::AnyBuffer>()                 // block_tables
      .template Arg<ffi::AnyBuffer>()                 // query_start_loc
      .template Arg<ffi::AnyBuffer>()                 // num_seqs
      .template Arg<std::optional<ffi::AnyBuffer>>()  // alibi_slopes
      .template Arg<std::optional<ffi::AnyBuffer>>()  // sinks
      .template Arg<std::optional<ffi::AnyBuffer>>()  // kv_scales
      .template Attr<double>("scale")
      .template Attr<std::optional<int64_t>>("sliding_window")
      .template Attr<std::optional<double>>("soft_cap");
}

/** The workspace has as many bytes as the CUDA function needs: another program may have built the call. */
inline ffi::Error CheckPagedAttentionWorkspace(const char* op, ffi::AnyBuffer workspace, int64_t needed) {
  const auto bytes = static_cast<int64_t>(workspace.size_bytes());
  if (bytes >= needed) return ffi::Error::Success();
  return Mismatch(op, "workspace", "at least " + std::to_string(needed) + " bytes", bytes);
}

/** Checks what the data shows, then calls `on_host`, the op's own copy of PagedAttentionOnHost
 * (paged_attention_host.h). */
inline ffi::Error RunPagedAttentionOnHost(const char* op, ffi::ThreadPool& pool, const PagedAttentionParams& params,
                                          void (*on_host)(const PagedAttentionParams&,
                                                          const PagedAttentionParallelFor&)) {
  PYXLA_RETURN_IF_ERROR(CheckPagedAttentionValues(op, params));
  on_host(params, [&](int64_t n, int64_t grain, const auto& body) { ParallelFor(pool, n, grain, body); });
  return ffi::Error::Success();
}

}  // namespace pyxla
