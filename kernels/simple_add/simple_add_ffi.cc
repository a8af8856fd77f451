// Checks and the two handlers of simple_add(a, b, alpha) -> out. See simple_add.h.
#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/float_type_of.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/dtype.h"
#include "pyxla/host/parallel.h"
#include "simple_add/simple_add.h"

namespace {

constexpr char kOp[] = "simple_add";

ffi::Error Check(const ffi::AnyBuffer& a, const ffi::AnyBuffer& b, const ffi::AnyBuffer& out) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "a", a, {ffi::F32, ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "b", b, {a.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckShape(kOp, "b", b, a.dimensions()));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "out", out, {a.element_type()}));
  return pyxla::CheckShape(kOp, "out", out, a.dimensions());
}

ffi::Error SimpleAddHost(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> out,
                         double alpha) {
  PYXLA_RETURN_IF_ERROR(Check(a, b, *out));
  constexpr int64_t kGrain = 1 << 15;
  pyxla::DispatchFloat(pyxla::FloatTypeOf(a.element_type()), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* a_data = static_cast<const T*>(a.untyped_data());
    const T* b_data = static_cast<const T*>(b.untyped_data());
    T* out_data = static_cast<T*>(out->untyped_data());
    const float scale = static_cast<float>(alpha);
    pyxla::ParallelFor(pool, static_cast<int64_t>(a.element_count()), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out_data[i] = pyxla::FromFloat<T>(pyxla::ToFloat(a_data[i]) + scale * pyxla::ToFloat(b_data[i]));
      }
    });
  });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kHost, SimpleAddHost,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()  // a
                           .Arg<ffi::AnyBuffer>()  // b
                           .Ret<ffi::AnyBuffer>()  // out
                           .Attr<double>("alpha"));

#if PYXLA_WITH_CUDA
ffi::Error SimpleAddCuda(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> out,
                         double alpha) {
  PYXLA_RETURN_IF_ERROR(Check(a, b, *out));
  return PYXLA_CUDA_STATUS(
      kOp, simple_add::LaunchSimpleAdd(stream, pyxla::FloatTypeOf(a.element_type()), a.untyped_data(), b.untyped_data(),
                                       out->untyped_data(), static_cast<int64_t>(a.element_count()),
                                       static_cast<float>(alpha)));
}

XLA_FFI_DEFINE_HANDLER(kCuda, SimpleAddCuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()  // a
                           .Arg<ffi::AnyBuffer>()  // b
                           .Ret<ffi::AnyBuffer>()  // out
                           .Attr<double>("alpha"),
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(simple_add,
               PYXLA_HOST_HANDLER("xla_gpu_simple_add", kHost) PYXLA_CUDA_HANDLER("xla_gpu_simple_add", kCuda))
