// A CUDA handler whose launch the driver refuses: more threads in a block than any GPU has.
#include "common/cuda.h"
#include "common/ffi.h"
#include "common/op_table.h"

cudaError_t LaunchTooManyThreads(cudaStream_t stream, float* out);

namespace {

ffi::Error Refused(cudaStream_t stream, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> out) {
  return PYXLA_CUDA_STATUS("probe_launch", LaunchTooManyThreads(stream, out->typed_data<float>()));
}
XLA_FFI_DEFINE_HANDLER(
    kRefused, Refused,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

}  // namespace

namespace pyxla {
extern const char kSourceDigest[];
const char kSourceDigest[] = "no sources of an op";
}  // namespace pyxla

PYXLA_OP_TABLE(probe_launch, PYXLA_CUDA_HANDLER("xla_gpu_probe_launch", kRefused))
