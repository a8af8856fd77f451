// Checks and the two handlers of rotary_and_cache(positions, qkv, cos_sin_cache, kv_cache(a!), slot_mapping,
// kv_scales?, is_neox) -> query. See rotary_and_cache.h.
#include "_kv_cache/kv_store_ffi.h"
#include "_rotary/rotary_ffi.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/parallel.h"
#include "rotary_and_cache/rotary_and_cache.h"

namespace {

using pyxla::CheckDtype;
using pyxla::Mismatch;
using pyxla::ShapeText;

constexpr char kOp[] = "rotary_and_cache";

struct Arguments {
  ffi::AnyBuffer positions, qkv, cos_sin_cache, kv_cache, slot_mapping;
  std::optional<ffi::AnyBuffer> kv_scales;
  ffi::AnyBuffer new_cache, query;
  bool is_neox;
};

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(const Arguments& a, rotary_and_cache::Params* params) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(kOp, "qkv", a.qkv, {ffi::F32, ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "qkv", a.qkv, 3));
  const int64_t tokens = a.qkv.dimensions()[0], all_heads = a.qkv.dimensions()[1], d = a.qkv.dimensions()[2];
  PYXLA_RETURN_IF_ERROR(pyxla::MakeRotaryParams(kOp, a.qkv, a.positions, a.cos_sin_cache, a.is_neox, params));

  // How many of the heads are keys and values is the cache's.
  PYXLA_RETURN_IF_ERROR(pyxla::CheckKvCache(kOp, a.qkv, a.kv_cache));
  const auto dims = a.kv_cache.dimensions();
  const bool merged = dims.size() == 4;
  if (merged ? d == 0 || dims[3] % d != 0 : dims[4] != d) {
    return Mismatch(kOp, "kv_cache", "heads of qkv's size " + std::to_string(d), "shape " + ShapeText(dims));
  }
  const int64_t kv_heads = merged ? dims[3] / d : dims[3];
  if (all_heads <= 2 * kv_heads) {
    return Mismatch(kOp, "qkv", "more heads than the " + std::to_string(2 * kv_heads) + " of keys and values",
                    all_heads);
  }
  PYXLA_RETURN_IF_ERROR(
      pyxla::MakeKvStoreParams(kOp, tokens, kv_heads, a.kv_cache, a.slot_mapping, a.kv_scales, a.new_cache, params));
  PYXLA_RETURN_IF_ERROR(CheckDtype(kOp, "query", a.query, {a.qkv.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "query", a.query, {tokens, all_heads - 2 * kv_heads, d}));
  params->qkv = a.qkv.untyped_data();
  params->query = a.query.untyped_data();
  params->heads = all_heads - 2 * kv_heads;
  return ffi::Error::Success();
}

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer positions, ffi::AnyBuffer qkv, ffi::AnyBuffer cos_sin_cache,
                ffi::AnyBuffer kv_cache, ffi::AnyBuffer slot_mapping, std::optional<ffi::AnyBuffer> kv_scales,
                ffi::Result<ffi::AnyBuffer> new_cache, ffi::Result<ffi::AnyBuffer> query, bool is_neox) {
  rotary_and_cache::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(
      {positions, qkv, cos_sin_cache, kv_cache, slot_mapping, kv_scales, *new_cache, *query, is_neox}, &params));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckPositions(kOp, params));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckSlots(kOp, params, params.tokens));
  constexpr int64_t kElementsPerPiece = 1 << 15;
  const int64_t token_elements = (params.heads + 2 * params.kv_heads) * params.d;
  pyxla::ParallelFor(pool, params.tokens, kElementsPerPiece / std::max<int64_t>(token_elements, 1),
                     [&](int64_t begin, int64_t end) { rotary_and_cache::RotaryAndCacheHost(params, begin, end); });
  return ffi::Error::Success();
}

// The arguments and results on both platforms.
template <typename Binding>
auto Bind(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()                 // positions
      .template Arg<ffi::AnyBuffer>()                 // qkv
      .template Arg<ffi::AnyBuffer>()                 // cos_sin_cache
      .template Arg<ffi::AnyBuffer>()                 // kv_cache
      .template Arg<ffi::AnyBuffer>()                 // slot_mapping
      .template Arg<std::optional<ffi::AnyBuffer>>()  // kv_scales
      .template Ret<ffi::AnyBuffer>()                 // new_cache
      .template Ret<ffi::AnyBuffer>()                 // query
      .template Attr<bool>("is_neox");
}

XLA_FFI_DEFINE_HANDLER(kHost, Host, Bind(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t stream, ffi::AnyBuffer positions, ffi::AnyBuffer qkv, ffi::AnyBuffer cos_sin_cache,
                ffi::AnyBuffer kv_cache, ffi::AnyBuffer slot_mapping, std::optional<ffi::AnyBuffer> kv_scales,
                ffi::Result<ffi::AnyBuffer> new_cache, ffi::Result<ffi::AnyBuffer> query, bool is_neox) {
  rotary_and_cache::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(
      {positions, qkv, cos_sin_cache, kv_cache, slot_mapping, kv_scales, *new_cache, *query, is_neox}, &params));
  return PYXLA_CUDA_STATUS(kOp, rotary_and_cache::LaunchRotaryAndCache(stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda, Bind(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(rotary_and_cache, PYXLA_HOST_HANDLER("xla_gpu_rotary_and_cache", kHost)
                                     PYXLA_CUDA_HANDLER("xla_gpu_rotary_and_cache", kCuda))
