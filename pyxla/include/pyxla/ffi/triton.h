// Launches kernels that Triton compiled ahead of time: what the launcher of cmake/triton_launcher.py is written in.
//
// It uses the CUDA runtime inside the library, which opens the driver at its first use: no Triton, no libcuda at
// link time.
#pragma once

#include <cstdint>

namespace pyxla {

// Python's //, % and cdiv for a divisor above 0, in which a variant's grid is written: rounded down, not to zero.
inline int64_t FloorDiv(int64_t value, int64_t divisor) { return value / divisor - (value % divisor < 0); }
inline int64_t Modulo(int64_t value, int64_t divisor) { return value - FloorDiv(value, divisor) * divisor; }
inline int64_t CeilDiv(int64_t value, int64_t divisor) { return -FloorDiv(-value, divisor); }

}  // namespace pyxla

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <initializer_list>
#include <mutex>
#include <string>
#include <utility>
#include <variant>

#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/triton_launch.h"
#include "pyxla/float_type.h"

namespace pyxla {

/** An operand or result as a kernel's argument. */
struct TritonPointer {
  TritonPointer(const ffi::AnyBuffer& buffer) : data(buffer.untyped_data()), dtype(buffer.element_type()) {}
  TritonPointer(const void* data, ffi::DataType dtype) : data(data), dtype(dtype) {}
  TritonPointer(const void* data, FloatType dtype)
      : data(data),
        dtype(dtype == FloatType::kFloat16    ? ffi::F16
              : dtype == FloatType::kBFloat16 ? ffi::BF16
                                              : ffi::F32) {}

  const void* data;
  ffi::DataType dtype;
};

inline bool DivisibleBy16(const TritonPointer& pointer) { return reinterpret_cast<uintptr_t>(pointer.data) % 16 == 0; }
inline bool DivisibleBy16(int64_t value) { return value % 16 == 0; }
inline bool FitsInt32(int64_t value) { return value >= INT32_MIN && value <= INT32_MAX; }

/** The error for a call that no variant takes. */
inline ffi::Error NoTritonVariant(
    const char* op, const char* kernel,
    std::initializer_list<std::pair<const char*, std::variant<TritonPointer, int64_t, double>>> arguments) {
  std::string got;
  for (const auto& [name, value] : arguments) {
    got += (got.empty() ? "" : ", ") + std::string(name) + "=";
    if (const auto* pointer = std::get_if<TritonPointer>(&value)) {
      got += std::string(DtypeName(pointer->dtype)) + (DivisibleBy16(*pointer) ? "" : " (unaligned)");
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      got += std::to_string(*integer);
    } else {
      got += std::to_string(std::get<double>(value));
    }
  }
  return Mismatch(op, kernel, "a call that one of its VARIANTS takes (triton_kernels.py)", got);
}

/** One variant: a fat binary, loaded at the first launch. The handle is good for every GPU of the process. */
class TritonKernel {
 public:
  TritonKernel(int32_t variant, const char* image, const char* name, unsigned threads, unsigned shared_bytes)
      : variant_(variant), image_(image), name_(name), threads_(threads), shared_bytes_(shared_bytes) {}

  /** Launches it on the stream; `arguments` are pointers to the kernel's parameters, in order. */
  ffi::Error Launch(const char* op, cudaStream_t stream, const std::array<int64_t, 3>& grid, const void** arguments) {
    constexpr std::array<int64_t, 3> kLargest = {INT_MAX, 65535, 65535};
    for (int i = 0; i < 3; ++i) {
      if (grid[i] == 0) return ffi::Error::Success();
      if (grid[i] < 0 || grid[i] > kLargest[i]) {
        return Mismatch(op, name_, "a grid of at most (2147483647, 65535, 65535)", ShapeText(grid));
      }
    }
    if (triton_launch != nullptr) {
      if (triton_launch(variant_, grid.data(), arguments)) return ffi::Error::Success();
      return ffi::Error::Internal(std::string(op) + ": " + name_ + ": Triton's interpreter failed");
    }
    cudaKernel_t kernel = nullptr;
    cudaError_t status = Load(&kernel);
    if (status == cudaSuccess) status = AllowSharedMemory(kernel);
    if (status == cudaSuccess) {
      const dim3 blocks(static_cast<unsigned>(grid[0]), static_cast<unsigned>(grid[1]), static_cast<unsigned>(grid[2]));
      status = cudaLaunchKernel(kernel, blocks, dim3(threads_), const_cast<void**>(arguments), shared_bytes_, stream);
    }
    if (status == cudaErrorNoKernelImageForDevice) return NoCode(op);
    return CudaStatus(op, status, name_, __FILE__, __LINE__);
  }

 private:
  cudaError_t Load(cudaKernel_t* kernel) {
    *kernel = kernel_.load(std::memory_order_acquire);
    if (*kernel != nullptr) return cudaSuccess;
    const std::lock_guard lock(mutex_);
    *kernel = kernel_.load(std::memory_order_relaxed);
    if (*kernel != nullptr) return cudaSuccess;
    // The first launch may be a captured one, and in a capture nothing is loaded but in this mode.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t status = cudaThreadExchangeStreamCaptureMode(&mode);
    if (status != cudaSuccess) return status;
    cudaLibrary_t library = nullptr;
    status = cudaLibraryLoadData(&library, image_, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (status == cudaSuccess) {
      status = cudaLibraryGetKernel(kernel, library, name_);
      if (status != cudaSuccess) cudaLibraryUnload(library);
    }
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (status == cudaSuccess) kernel_.store(*kernel, std::memory_order_release);
    return status;
  }

  // Above 48 KiB a kernel must ask, on each GPU.
  cudaError_t AllowSharedMemory(cudaKernel_t kernel) const {
    constexpr unsigned kWithoutAsking = 48 * 1024;
    if (shared_bytes_ <= kWithoutAsking) return cudaSuccess;
    int device = 0;
    if (cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
    return cudaKernelSetAttributeForDevice(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_bytes_), device);
  }

  static ffi::Error NoCode(const char* op) {
    int device = 0, major = 0, minor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return Mismatch(op, "CUDA architecture", "code for sm_" + std::to_string(major) + std::to_string(minor),
                    PYXLA_CUDA_ARCHITECTURES);
  }

  int32_t variant_;
  const char* image_;
  const char* name_;
  unsigned threads_;
  unsigned shared_bytes_;
  std::mutex mutex_;
  std::atomic<cudaKernel_t> kernel_ = nullptr;
};

}  // namespace pyxla
#endif
