// CUDA handlers: one whose launch the driver refuses (more threads in a block than any GPU has), one that XLA may
// capture in a command buffer and that takes the number of threads, and one that computes through its workspace.
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/ffi.h"
#include "pyxla/ffi/op_table.h"

cudaError_t LaunchTooManyThreads(cudaStream_t stream, float* out);
cudaError_t LaunchAddOne(cudaStream_t stream, const float* x, float* out, size_t count, unsigned threads);
cudaError_t LaunchThroughWorkspace(cudaStream_t stream, const float* x, float* workspace, float* out, size_t count);

namespace {

ffi::Error Refused(cudaStream_t stream, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> out) {
  return PYXLA_CUDA_STATUS("probe_launch", LaunchTooManyThreads(stream, out->typed_data<float>()));
}
XLA_FFI_DEFINE_HANDLER(
    kRefused, Refused,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

// out = x + 1. The driver refuses blocks of more than 1024 threads.
ffi::Error Captured(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out, int64_t threads) {
  return PYXLA_CUDA_STATUS("probe_captured", LaunchAddOne(stream, x.typed_data<float>(), out->typed_data<float>(),
                                                          x.element_count(), static_cast<unsigned>(threads)));
}
XLA_FFI_DEFINE_HANDLER(
    kCaptured, Captured,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<int64_t>(
        "threads"),
    {ffi::Traits::kCmdBufferCompatible});

// out = x + 1, by way of the workspace.
ffi::Error ThroughWorkspace(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out,
                            ffi::Result<ffi::AnyBuffer> workspace) {
  if (workspace->element_count() < x.size_bytes()) return ffi::Error::Internal("probe_scratch: workspace too small");
  return PYXLA_CUDA_STATUS("probe_scratch", LaunchThroughWorkspace(stream, x.typed_data<float>(),
                                                                   static_cast<float*>(workspace->untyped_data()),
                                                                   out->typed_data<float>(), x.element_count()));
}
XLA_FFI_DEFINE_HANDLER(kThroughWorkspace, ThroughWorkspace,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>(),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

namespace pyxla {
extern const char kSourceDigest[];
const char kSourceDigest[] = "no sources of an op";
}  // namespace pyxla

PYXLA_OP_TABLE(probe_launch, PYXLA_CUDA_HANDLER("xla_gpu_probe_launch", kRefused)
                                 PYXLA_CUDA_HANDLER("xla_gpu_probe_captured", kCaptured)
                                     PYXLA_CUDA_HANDLER("xla_gpu_probe_scratch", kThroughWorkspace))
