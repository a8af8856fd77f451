// XLA's typed FFI with what pyxla's custom calls add to it: optional tensors and optional scalars.
//
// pyxla emits an absent `Tensor?` as an operand of type pred[0] and an optional scalar as an array of none or one
// element, so that every argument keeps its place and its name. Bind them as
//   .Arg<std::optional<ffi::AnyBuffer>>()            // weight
//   .Attr<std::optional<int64_t>>("sliding_window")
#pragma once

#include <optional>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wreturn-type"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
#include "xla/ffi/api/ffi.h"
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace ffi = xla::ffi;

namespace xla::ffi {

template <>
struct ArgDecoding<std::optional<AnyBuffer>> {
  static std::optional<std::optional<AnyBuffer>> Decode(XLA_FFI_ArgType type, void* arg, DiagnosticEngine& diagnostic) {
    std::optional<AnyBuffer> buffer = ArgDecoding<AnyBuffer>::Decode(type, arg, diagnostic);
    if (!buffer.has_value()) return std::nullopt;
    const bool absent =
        buffer->element_type() == PRED && buffer->dimensions().size() == 1 && buffer->element_count() == 0;
    return absent ? std::optional<AnyBuffer>() : buffer;
  }
};

template <typename T>
struct OptionalScalarDecoding {
  using Type = std::optional<T>;
  static std::optional<Type> Decode(XLA_FFI_AttrType type, void* attr, DiagnosticEngine& diagnostic) {
    std::optional<Span<const T>> values = AttrDecoding<Span<const T>>::Decode(type, attr, diagnostic);
    if (!values.has_value()) return std::nullopt;
    if (values->size() > 1) {
      diagnostic.Emit("Wrong optional attribute: expected none or one value, got ") << values->size();
      return std::nullopt;
    }
    return values->size() == 0 ? Type() : Type((*values)[0]);
  }
};

template <>
struct AttrDecoding<std::optional<int64_t>> : OptionalScalarDecoding<int64_t> {};
template <>
struct AttrDecoding<std::optional<double>> : OptionalScalarDecoding<double> {};

}  // namespace xla::ffi
