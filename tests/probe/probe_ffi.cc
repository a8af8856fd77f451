// Handlers that show a test what arrived: not an op, but the other end of pyxla's lowering.
#include <cstring>

#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/parallel.h"

namespace {

using Optional = std::optional<ffi::AnyBuffer>;

// out: float64, the attributes one after the other; text: uint8, the string's bytes, zero-padded.
ffi::Error Attributes(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> text,
                      int64_t integer, double number, bool flag, std::string_view string,
                      ffi::Span<const int64_t> integers, ffi::Span<const double> numbers,
                      std::optional<int64_t> maybe_integer, std::optional<double> maybe_number) {
  double* o = out->typed_data<double>();
  *o++ = static_cast<double>(integer);
  *o++ = number;
  *o++ = flag;
  for (int64_t value : integers) *o++ = static_cast<double>(value);
  for (double value : numbers) *o++ = value;
  *o++ = maybe_integer ? static_cast<double>(*maybe_integer) : -1;
  *o++ = maybe_number.value_or(-1);
  std::memset(text->untyped_data(), 0, text->element_count());
  std::memcpy(text->untyped_data(), string.data(), std::min(string.size(), text->element_count()));
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kAttributes, Attributes,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("integer")
                           .Attr<double>("number")
                           .Attr<bool>("flag")
                           .Attr<std::string_view>("string")
                           .Attr<ffi::Span<const int64_t>>("integers")
                           .Attr<ffi::Span<const double>>("numbers")
                           .Attr<std::optional<int64_t>>("maybe_integer")
                           .Attr<std::optional<double>>("maybe_number"));

// out = x + (a absent: 0) + 10 * (b absent: 0), first elements.
ffi::Error Optionals(Optional a, ffi::AnyBuffer x, Optional b, ffi::Result<ffi::AnyBuffer> out) {
  const float extra = (a ? a->typed_data<float>()[0] : 0) + 10 * (b ? b->typed_data<float>()[0] : 0);
  for (size_t i = 0; i < x.element_count(); ++i) out->typed_data<float>()[i] = x.typed_data<float>()[i] + extra;
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kOptionals, Optionals,
                       ffi::Ffi::Bind().Arg<Optional>().Arg<ffi::AnyBuffer>().Arg<Optional>().Ret<ffi::AnyBuffer>());

// out = calls + type * key + tuple[0].
ffi::Error Names(ffi::AnyBuffer calls, ffi::AnyBuffer key, ffi::Result<ffi::AnyBuffer> out, double type,
                 ffi::Span<const int64_t> tuple) {
  for (size_t i = 0; i < calls.element_count(); ++i)
    out->typed_data<float>()[i] = calls.typed_data<float>()[i] + static_cast<float>(type) * key.typed_data<float>()[i] +
                                  static_cast<float>(tuple.begin()[0]);
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kNames, Names,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<double>("type")
                           .Attr<ffi::Span<const int64_t>>("tuple"));

// out[i] = start + i, n of them; no operand.
ffi::Error Iota(ffi::Result<ffi::AnyBuffer> out, int64_t n, int64_t start) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape("probe_iota", "out", *out, {n}));
  for (size_t i = 0; i < out->element_count(); ++i)
    out->typed_data<float>()[i] = static_cast<float>(start + static_cast<int64_t>(i));
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kIota, Iota, ffi::Ffi::Bind().Ret<ffi::AnyBuffer>().Attr<int64_t>("n").Attr<int64_t>("start"));

// cache[i] += update[i] in place; an error if the buffers are not the same.
ffi::Error Accumulate(ffi::AnyBuffer cache, ffi::AnyBuffer update, ffi::Result<ffi::AnyBuffer> new_cache,
                      ffi::Result<ffi::AnyBuffer> sum) {
  if (cache.untyped_data() != new_cache->untyped_data()) return ffi::Error::Internal("probe_accumulate: not in place");
  float total = 0;
  for (size_t i = 0; i < cache.element_count(); ++i) {
    new_cache->typed_data<float>()[i] += update.typed_data<float>()[i];
    total += new_cache->typed_data<float>()[i];
  }
  sum->typed_data<float>()[0] = total;
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(
    kAccumulate, Accumulate,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

ffi::Error Increment(ffi::AnyBuffer cache, ffi::Result<ffi::AnyBuffer> new_cache, double by) {
  if (cache.untyped_data() != new_cache->untyped_data()) return ffi::Error::Internal("probe_increment: not in place");
  for (size_t i = 0; i < cache.element_count(); ++i) new_cache->typed_data<float>()[i] += static_cast<float>(by);
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kIncrement, Increment,
                       ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<double>("by"));

// Counts how often each index of a parallel loop ran: out[i] must be 1.
ffi::Error ParallelCount(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out, int64_t grain) {
  const int64_t n = static_cast<int64_t>(x.element_count());
  int32_t* counts = out->typed_data<int32_t>();
  std::memset(counts, 0, n * sizeof(int32_t));
  pyxla::ParallelFor(pool, n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) __atomic_fetch_add(&counts[i], 1, __ATOMIC_RELAXED);
  });
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(
    kParallelCount, ParallelCount,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<int64_t>("grain"));

ffi::Error Fail(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer>) {
  if (x.typed_data<float>()[0] < 0)
    return pyxla::Mismatch("probe_fail", "x", "a first element that is not negative", "-1");
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kFail, Fail, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

// out[0] = bytes of the workspace.
ffi::Error Workspace(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> workspace, int64_t) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype("probe_workspace", "workspace", *workspace, {ffi::U8}));
  out->typed_data<float>()[0] = static_cast<float>(workspace->element_count());
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(
    kWorkspace, Workspace,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<int64_t>("size"));

}  // namespace

namespace pyxla {
extern const char kSourceDigest[];
const char kSourceDigest[] = "no sources of an op";
}  // namespace pyxla

PYXLA_OP_TABLE(probe,
               PYXLA_HOST_HANDLER("xla_gpu_probe_attributes", kAttributes)
                   PYXLA_HOST_HANDLER("xla_gpu_probe_optionals", kOptionals)
                       PYXLA_HOST_HANDLER("xla_gpu_probe_names", kNames) PYXLA_HOST_HANDLER("xla_gpu_probe_iota", kIota)
                           PYXLA_HOST_HANDLER("xla_gpu_probe_accumulate", kAccumulate)
                               PYXLA_HOST_HANDLER("xla_gpu_probe_accumulate_again", kAccumulate)
                                   PYXLA_HOST_HANDLER("xla_gpu_probe_increment", kIncrement)
                                       PYXLA_HOST_HANDLER("xla_gpu_probe_parallel_count", kParallelCount)
                                           PYXLA_HOST_HANDLER("xla_gpu_probe_fail", kFail)
                                               PYXLA_HOST_HANDLER("xla_gpu_probe_workspace", kWorkspace))
