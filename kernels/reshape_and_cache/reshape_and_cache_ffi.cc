// Checks and the two handlers of reshape_and_cache(key, value, kv_cache(a!), slot_mapping, kv_scales?). See
// reshape_and_cache.h.
#include "_kv_cache/kv_store_ffi.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/float_type_of.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/parallel.h"
#include "reshape_and_cache/reshape_and_cache.h"

namespace {

using pyxla::CheckDtype;
using pyxla::CheckShape;
using pyxla::Mismatch;
using pyxla::ShapeText;

constexpr char kOp[] = "reshape_and_cache";

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(ffi::AnyBuffer key, ffi::AnyBuffer value, ffi::AnyBuffer kv_cache, ffi::AnyBuffer slot_mapping,
                      std::optional<ffi::AnyBuffer> kv_scales, ffi::AnyBuffer new_cache,
                      reshape_and_cache::Params* params) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(kOp, "key", key, {ffi::F32, ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "key", key, 3));
  const int64_t tokens = key.dimensions()[0], kv_heads = key.dimensions()[1], d = key.dimensions()[2];
  PYXLA_RETURN_IF_ERROR(CheckDtype(kOp, "value", value, {key.element_type()}));
  PYXLA_RETURN_IF_ERROR(CheckShape(kOp, "value", value, key.dimensions()));

  PYXLA_RETURN_IF_ERROR(pyxla::CheckKvCache(kOp, key, kv_cache));
  const auto dims = kv_cache.dimensions();
  const bool fits = dims.size() == 4 ? dims[3] == kv_heads * d : dims[3] == kv_heads && dims[4] == d;
  if (!fits) {
    return Mismatch(kOp, "kv_cache", "heads as key's " + ShapeText(key.dimensions()), "shape " + ShapeText(dims));
  }
  PYXLA_RETURN_IF_ERROR(
      pyxla::MakeKvStoreParams(kOp, tokens, kv_heads, kv_cache, slot_mapping, kv_scales, new_cache, params));
  params->key = key.untyped_data();
  params->value = value.untyped_data();
  params->tokens = tokens;
  params->d = d;
  params->dtype = pyxla::FloatTypeOf(key.element_type());
  return ffi::Error::Success();
}

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer key, ffi::AnyBuffer value, ffi::AnyBuffer kv_cache,
                ffi::AnyBuffer slot_mapping, std::optional<ffi::AnyBuffer> kv_scales,
                ffi::Result<ffi::AnyBuffer> new_cache) {
  reshape_and_cache::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(key, value, kv_cache, slot_mapping, kv_scales, *new_cache, &params));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckSlots(kOp, params, params.tokens));
  constexpr int64_t kElementsPerPiece = 1 << 16;
  const int64_t tokens_per_piece = kElementsPerPiece / std::max<int64_t>(params.kv_heads * params.d, 1);
  pyxla::ParallelFor(pool, params.tokens, tokens_per_piece,
                     [&](int64_t begin, int64_t end) { reshape_and_cache::ReshapeAndCacheHost(params, begin, end); });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()                 // key
                           .Arg<ffi::AnyBuffer>()                 // value
                           .Arg<ffi::AnyBuffer>()                 // kv_cache
                           .Arg<ffi::AnyBuffer>()                 // slot_mapping
                           .Arg<std::optional<ffi::AnyBuffer>>()  // kv_scales
                           .Ret<ffi::AnyBuffer>());               // new_cache

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t stream, ffi::AnyBuffer key, ffi::AnyBuffer value, ffi::AnyBuffer kv_cache,
                ffi::AnyBuffer slot_mapping, std::optional<ffi::AnyBuffer> kv_scales,
                ffi::Result<ffi::AnyBuffer> new_cache) {
  reshape_and_cache::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(key, value, kv_cache, slot_mapping, kv_scales, *new_cache, &params));
  return PYXLA_CUDA_STATUS(kOp, reshape_and_cache::LaunchReshapeAndCache(stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()                 // key
                           .Arg<ffi::AnyBuffer>()                 // value
                           .Arg<ffi::AnyBuffer>()                 // kv_cache
                           .Arg<ffi::AnyBuffer>()                 // slot_mapping
                           .Arg<std::optional<ffi::AnyBuffer>>()  // kv_scales
                           .Ret<ffi::AnyBuffer>(),                // new_cache
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(reshape_and_cache, PYXLA_HOST_HANDLER("xla_gpu_reshape_and_cache", kHost)
                                      PYXLA_CUDA_HANDLER("xla_gpu_reshape_and_cache", kCuda))
