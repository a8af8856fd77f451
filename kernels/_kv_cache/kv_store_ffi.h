// Checks of what an op that writes keys and values into a paged cache takes for it.
#pragma once

#include "_kv_cache/kv_store.h"
#include "pyxla/ffi/checks.h"

namespace pyxla {

/** Dtype and form of the cache, whose last two dimensions may be merged; the op compares its heads with x's. */
inline ffi::Error CheckKvCache(const char* op, const ffi::AnyBuffer& x, const ffi::AnyBuffer& kv_cache) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "kv_cache", kv_cache, {x.element_type(), ffi::F8E4M3FN}));
  const auto dims = kv_cache.dimensions();
  if (dims.size() != 4 && dims.size() != 5) {
    return Mismatch(op, "kv_cache", "rank 4 or 5", "shape " + ShapeText(dims));
  }
  if (dims[0] != 2) return Mismatch(op, "kv_cache", "a first dimension of 2, keys and values", dims[0]);
  return ffi::Error::Success();
}

/** Checks what comes with a cache of so many heads, for keys and values of so many tokens, and fills in `params`. */
inline ffi::Error MakeKvStoreParams(const char* op, int64_t tokens, int64_t kv_heads, const ffi::AnyBuffer& kv_cache,
                                    const ffi::AnyBuffer& slot_mapping, const std::optional<ffi::AnyBuffer>& kv_scales,
                                    const ffi::AnyBuffer& new_cache, KvStoreParams* params) {
  PYXLA_RETURN_IF_ERROR(CheckInPlace(op, "kv_cache", kv_cache, new_cache));
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "slot_mapping", slot_mapping, {ffi::S32, ffi::S64}));
  PYXLA_RETURN_IF_ERROR(CheckShape(op, "slot_mapping", slot_mapping, {tokens}));
  const bool float8_cache = kv_cache.element_type() == ffi::F8E4M3FN;
  if (kv_scales) {
    if (!float8_cache) return Mismatch(op, "kv_scales", "none, as kv_cache is not float8_e4m3fn", "a tensor");
    PYXLA_RETURN_IF_ERROR(CheckDtype(op, "kv_scales", *kv_scales, {ffi::F32}));
    PYXLA_RETURN_IF_ERROR(CheckShape(op, "kv_scales", *kv_scales, {2, kv_heads}));
  }
  *params = {.cache = kv_cache.untyped_data(),
             .slot_mapping = {slot_mapping.untyped_data(), slot_mapping.element_type() == ffi::S64},
             .kv_scales = kv_scales ? static_cast<const float*>(kv_scales->untyped_data()) : nullptr,
             .slots = kv_cache.dimensions()[1] * kv_cache.dimensions()[2],
             .kv_heads = kv_heads,
             .float8_cache = float8_cache};
  return ffi::Error::Success();
}

/** Slots, which only the host can refuse: before any is used. */
inline ffi::Error CheckSlots(const char* op, const KvStoreParams& p, int64_t tokens) {
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t slot = p.slot_mapping[token];
    if (slot < -1 || slot >= p.slots) {
      return Mismatch(op, "slot_mapping", "-1 or a slot in [0, " + std::to_string(p.slots) + ")",
                      std::to_string(slot) + " at token " + std::to_string(token));
    }
  }
  return ffi::Error::Success();
}

}  // namespace pyxla
