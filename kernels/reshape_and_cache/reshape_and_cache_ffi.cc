// Checks and the two handlers of reshape_and_cache(key, value, kv_cache(a!), slot_mapping, kv_scales?). See
// reshape_and_cache.h.
#include "common/checks.h"
#include "common/cuda.h"
#include "common/dtype.h"
#include "common/op_table.h"
#include "common/parallel.h"
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

  // The cache's last two dimensions may be merged.
  PYXLA_RETURN_IF_ERROR(CheckDtype(kOp, "kv_cache", kv_cache, {key.element_type(), ffi::F8E4M3FN}));
  const auto dims = kv_cache.dimensions();
  if (dims.size() != 4 && dims.size() != 5) {
    return Mismatch(kOp, "kv_cache", "rank 4 or 5", "shape " + ShapeText(dims));
  }
  if (dims[0] != 2) return Mismatch(kOp, "kv_cache", "a first dimension of 2, keys and values", dims[0]);
  const bool fits = dims.size() == 4 ? dims[3] == kv_heads * d : dims[3] == kv_heads && dims[4] == d;
  if (!fits) {
    return Mismatch(kOp, "kv_cache", "heads as key's " + ShapeText(key.dimensions()), "shape " + ShapeText(dims));
  }
  PYXLA_RETURN_IF_ERROR(pyxla::CheckInPlace(kOp, "kv_cache", kv_cache, new_cache));

  PYXLA_RETURN_IF_ERROR(CheckDtype(kOp, "slot_mapping", slot_mapping, {ffi::S32, ffi::S64}));
  PYXLA_RETURN_IF_ERROR(CheckShape(kOp, "slot_mapping", slot_mapping, {tokens}));
  const bool float8_cache = kv_cache.element_type() == ffi::F8E4M3FN;
  if (kv_scales) {
    if (!float8_cache) return Mismatch(kOp, "kv_scales", "none, as kv_cache is not float8_e4m3fn", "a tensor");
    PYXLA_RETURN_IF_ERROR(CheckDtype(kOp, "kv_scales", *kv_scales, {ffi::F32}));
    PYXLA_RETURN_IF_ERROR(CheckShape(kOp, "kv_scales", *kv_scales, {2, kv_heads}));
  }
  *params = {.key = key.untyped_data(),
             .value = value.untyped_data(),
             .cache = kv_cache.untyped_data(),
             .slot_mapping = slot_mapping.untyped_data(),
             .kv_scales = kv_scales ? static_cast<const float*>(kv_scales->untyped_data()) : nullptr,
             .tokens = tokens,
             .slots = dims[1] * dims[2],
             .kv_heads = kv_heads,
             .d = d,
             .dtype = pyxla::FloatTypeOf(key.element_type()),
             .float8_cache = float8_cache,
             .wide_slots = slot_mapping.element_type() == ffi::S64};
  return ffi::Error::Success();
}

// Slots, which only the host can refuse: before any is used.
ffi::Error CheckSlots(const reshape_and_cache::Params& p) {
  for (int64_t token = 0; token < p.tokens; ++token) {
    const int64_t slot = reshape_and_cache::SlotOf(p, token);
    if (slot < -1 || slot >= p.slots) {
      return Mismatch(kOp, "slot_mapping", "-1 or a slot in [0, " + std::to_string(p.slots) + ")",
                      std::to_string(slot) + " at token " + std::to_string(token));
    }
  }
  return ffi::Error::Success();
}

ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer key, ffi::AnyBuffer value, ffi::AnyBuffer kv_cache,
                ffi::AnyBuffer slot_mapping, std::optional<ffi::AnyBuffer> kv_scales,
                ffi::Result<ffi::AnyBuffer> new_cache) {
  reshape_and_cache::Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams(key, value, kv_cache, slot_mapping, kv_scales, *new_cache, &params));
  PYXLA_RETURN_IF_ERROR(CheckSlots(params));
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
