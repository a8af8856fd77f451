// Handlers with one mistake each, which pyxla.testing's checks must find (tests/testing/test_mistakes.py).
#include <stdexcept>
#include <string>
#include <vector>

#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/parallel.h"

namespace {

ffi::Error Doubled(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  // Untyped: typed_data would end the process for a dtype that the unchecked handler lets pass.
  const auto* from = static_cast<const float*>(x.untyped_data());
  auto* to = static_cast<float*>(out->untyped_data());
  for (size_t i = 0; i < x.element_count(); ++i) to[i] = 2 * from[i];
  return ffi::Error::Success();
}

// Writes to an operand that the schema does not declare as mutated.
ffi::Error WritesOperand(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  ffi::Error error = Doubled(x, out);
  if (x.element_count() > 0) x.typed_data<float>()[0] = 0;
  return error;
}
XLA_FFI_DEFINE_HANDLER(kWritesOperand, WritesOperand, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

// Every other call differs in the last bit of the first element.
ffi::Error Unstable(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  static int calls = 0;
  ffi::Error error = Doubled(x, out);
  if (x.element_count() > 0) reinterpret_cast<uint32_t*>(out->untyped_data())[0] ^= calls++ % 2;
  return error;
}
XLA_FFI_DEFINE_HANDLER(kUnstable, Unstable, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

// Does not check that x is float32, as Python does.
XLA_FFI_DEFINE_HANDLER(kUnchecked, Doubled, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

ffi::Error Checked(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype("mistake_checked", "x", x, {ffi::F32}));
  return Doubled(x, out);
}
XLA_FFI_DEFINE_HANDLER(kChecked, Checked, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

ffi::Error Throws(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer>) {
  std::vector<int> empty;
  return ffi::Error::Internal(std::to_string(empty.at(x.element_count())));
}
XLA_FFI_DEFINE_HANDLER(kThrows, Throws, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

ffi::Error ThrowsInLoop(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer>) {
  pyxla::ParallelFor(pool, static_cast<int64_t>(x.element_count()), 1, [](int64_t begin, int64_t) {
    if (begin % 3 == 1) throw std::runtime_error("piece of the loop");
  });
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kThrowsInLoop, ThrowsInLoop,
                       ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

ffi::Error ThrowsNumber(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) { throw 7; }
XLA_FFI_DEFINE_HANDLER(kThrowsNumber, ThrowsNumber, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

// Of the CUDA handlers the part before the launch, and the error of a launch without a GPU.
ffi::Error Scaled(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out, bool) { return Doubled(x, out); }
ffi::Error LaunchError() {
  return ffi::Error::Internal("mistake: launch: expected cudaSuccess, got cudaErrorNoDevice (no GPU) from Launch()");
}
ffi::Error ScaledOnCuda(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>, bool) { return LaunchError(); }
#define BIND_SCALED(attribute) ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<bool>(attribute)
XLA_FFI_DEFINE_HANDLER(kScaled, Scaled, BIND_SCALED("renormalize"));
XLA_FFI_DEFINE_HANDLER(kOtherAttributeOnHost, Scaled, BIND_SCALED("renormalise"));
XLA_FFI_DEFINE_HANDLER(kScaledOnCuda, ScaledOnCuda, BIND_SCALED("renormalize"));
XLA_FFI_DEFINE_HANDLER(kOtherAttribute, ScaledOnCuda, BIND_SCALED("renormalise"));

// Ignores the error of its launch.
ffi::Error IgnoresLaunch(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>, bool) {
  static_cast<void>(LaunchError());
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kIgnoresLaunch, IgnoresLaunch, BIND_SCALED("renormalize"));

// Takes the operands of CUDA in another order than the schema.
ffi::Error First(ffi::AnyBuffer x, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> out) { return Doubled(x, out); }
ffi::Error FirstOnCuda(ffi::AnyBuffer weight, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer>) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape("mistake_order", "weight", weight, {x.dimensions().back()}));
  return LaunchError();
}
#define BIND_FIRST ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
XLA_FFI_DEFINE_HANDLER(kFirst, First, BIND_FIRST);
XLA_FFI_DEFINE_HANDLER(kFirstOnCuda, FirstOnCuda, BIND_FIRST);

}  // namespace

namespace pyxla {
extern const char kSourceDigest[];
const char kSourceDigest[] = "no sources of an op";
}  // namespace pyxla

#define ON_CUDA(target, handler) {target, "CUDA", nullptr, nullptr, nullptr, PYXLA_STAGE(target, handler)},
#define ON_BOTH(name, host, cuda) PYXLA_HOST_HANDLER("xla_gpu_" name, host) ON_CUDA("xla_gpu_" name, cuda)

PYXLA_OP_TABLE(mistakes, PYXLA_HOST_HANDLER("xla_gpu_mistake_writes_operand",
                                            kWritesOperand) PYXLA_HOST_HANDLER("xla_gpu_mistake_unstable", kUnstable)
                             PYXLA_HOST_HANDLER("xla_gpu_mistake_unchecked", kUnchecked)
                                 PYXLA_HOST_HANDLER("xla_gpu_mistake_checked", kChecked)
                                     PYXLA_HOST_HANDLER("xla_gpu_mistake_throws", kThrows)
                                         PYXLA_HOST_HANDLER("xla_gpu_mistake_throws_in_loop", kThrowsInLoop)
                                             PYXLA_HOST_HANDLER("xla_gpu_mistake_throws_number", kThrowsNumber)
                                                 PYXLA_HOST_HANDLER("xla_gpu_mistake_binding", kOtherAttributeOnHost)
                                                     ON_BOTH("mistake_launch", kScaled, kScaledOnCuda)
                                                         ON_BOTH("mistake_attribute", kScaled, kOtherAttribute)
                                                             ON_BOTH("mistake_silent", kScaled, kIgnoresLaunch)
                                                                 ON_BOTH("mistake_order", kFirst, kFirstOnCuda))
