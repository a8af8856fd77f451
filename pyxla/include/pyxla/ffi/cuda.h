// What a CUDA handler needs beside the FFI: the stream's type and errors that carry CUDA's own text.
#pragma once

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

#include <optional>
#include <sstream>
#include <utility>

#include "pyxla/ffi/ffi.h"

namespace pyxla {

inline thread_local std::optional<ffi::Error> launch_error;

/**
 * An error of the FFI as the result of a launch function, whose declaration knows CUDA alone. Its text waits on this
 * thread for `PYXLA_CUDA_STATUS`, which takes the result.
 */
inline cudaError_t LaunchStatus(ffi::Error error) {
  if (error.success()) return cudaSuccess;
  launch_error = std::move(error);
  return cudaErrorUnknown;
}

/** The error of a CUDA call with CUDA's own name and text; `PYXLA_CUDA_STATUS` fills in the place. */
inline ffi::Error CudaStatus(const char* op, cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaSuccess) return ffi::Error::Success();
  if (const auto error = std::exchange(launch_error, std::nullopt)) return *error;
  // Clears it: the runtime keeps an error, and the check after a later launch would find it again.
  cudaGetLastError();
  std::ostringstream message;
  message << op << ": launch: expected cudaSuccess, got " << cudaGetErrorName(status) << " ("
          << cudaGetErrorString(status) << ") from " << expression << " at " << file << ":" << line;
  return ffi::Error::Internal(message.str());
}

}  // namespace pyxla

/** A launch function's `cudaError_t` as the handler's result: `return PYXLA_CUDA_STATUS(kOp, LaunchRmsNorm(...));` */
#define PYXLA_CUDA_STATUS(op, expression) ::pyxla::CudaStatus(op, (expression), #expression, __FILE__, __LINE__)
#endif
