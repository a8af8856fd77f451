#include <cuda_runtime.h>

namespace probe_launch {

__global__ void Kernel(float* out) { out[0] = 1; }

__global__ void AddOne(const float* x, float* out, size_t count) {
  const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i < count) out[i] = x[i] + 1;
}

}  // namespace probe_launch

cudaError_t LaunchTooManyThreads(cudaStream_t stream, float* out) {
  probe_launch::Kernel<<<1, 4096, 0, stream>>>(out);
  return cudaGetLastError();
}

cudaError_t LaunchAddOne(cudaStream_t stream, const float* x, float* out, size_t count, unsigned threads) {
  probe_launch::AddOne<<<(count + threads - 1) / threads, threads, 0, stream>>>(x, out, count);
  return cudaGetLastError();
}

cudaError_t LaunchThroughWorkspace(cudaStream_t stream, const float* x, float* workspace, float* out, size_t count) {
  probe_launch::AddOne<<<(count + 255) / 256, 256, 0, stream>>>(x, workspace, count);
  cudaMemcpyAsync(out, workspace, count * sizeof(float), cudaMemcpyDeviceToDevice, stream);
  return cudaGetLastError();
}
