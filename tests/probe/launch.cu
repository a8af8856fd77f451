#include <cuda_runtime.h>

namespace probe_launch {

__global__ void Kernel(float* out) { out[0] = 1; }

}  // namespace probe_launch

cudaError_t LaunchTooManyThreads(cudaStream_t stream, float* out) {
  probe_launch::Kernel<<<1, 4096, 0, stream>>>(out);
  return cudaGetLastError();
}
