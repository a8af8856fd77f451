// Stands in for the CUDA runtime where there is no GPU: writes down the launches of a library that is linked with it.
#include <cuda_runtime_api.h>

#include <cstring>

#include "pyxla/ffi/triton.h"

extern "C" {

// Set by the test: sizes of the kernel's parameters, what a launch returns, the GPU's compute capability.
int parameter_sizes[32];
int parameter_count;
cudaError_t load_status, launch_status;
int capability[2];

// Read by the test.
cudaError_t last_error;
int loads, launches, shared_memory_allowed, mode_of_load;
const void* image;
char kernel_name[256];
unsigned grid[3], block[3];
size_t shared_bytes;
void* stream;
unsigned char parameters[32][16];

// Of a call that failed, as CUDA does.
static cudaError_t Kept(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

cudaError_t cudaGetLastError() {
  const cudaError_t status = last_error;
  last_error = cudaSuccess;
  return status;
}

static int current_mode = cudaStreamCaptureModeGlobal;

int capture_mode() { return current_mode; }

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const int before = current_mode;
  current_mode = *mode;
  *mode = static_cast<cudaStreamCaptureMode>(before);
  return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  ++loads;
  mode_of_load = current_mode;
  *library = reinterpret_cast<cudaLibrary_t>(const_cast<void*>(code));
  return Kept(load_status);
}

cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  std::strncpy(kernel_name, name, sizeof(kernel_name) - 1);
  *kernel = reinterpret_cast<cudaKernel_t>(library);
  return cudaSuccess;
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute attribute, int value, int) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) shared_memory_allowed = value;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments, size_t shared,
                             cudaStream_t on) {
  ++launches;
  image = kernel;
  const unsigned sizes[][3] = {{blocks.x, blocks.y, blocks.z}, {threads.x, threads.y, threads.z}};
  std::memcpy(grid, sizes[0], sizeof(grid));
  std::memcpy(block, sizes[1], sizeof(block));
  shared_bytes = shared;
  stream = on;
  for (int i = 0; i < parameter_count; ++i) std::memcpy(parameters[i], arguments[i], parameter_sizes[i]);
  return Kept(launch_status);
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = capability[attribute == cudaDevAttrComputeCapabilityMinor];
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheTest"; }
const char* cudaGetErrorString(cudaError_t) { return "its text"; }

// A launch with this much shared memory: 0 if the launcher took it.
int launch_with_shared_memory(unsigned bytes) {
  static char nothing;
  pyxla::TritonKernel kernel(0, &nothing, "kernel", 32, bytes);
  return kernel.Launch("op", nullptr, {1, 1, 1}, nullptr).failure();
}
}
