// y = sum_p x[p] + residual; residual = y; out[r][i] = y[r][i] / sqrt(mean_i(y[r][i]^2) + eps) * weight[i]
//
//   parts[p]: [rows, hidden], T, contiguous, read; on a mesh each is the x of another device
//   residual: [rows, hidden], T, contiguous, read and written
//
// _rms_norm/rms_norm.h has T, weight and out; its x is not used. y is formed in float, the parts in their order and the
// residual last, so that all devices get the same bits; residual and out are rounded from it once each.
// Source: as there; the sum over peers' memory in one step is that of TensorRT-LLM and vLLM, whose code is not used.
// Test: devtool test fused_all_reduce_rms_norm
#pragma once

#include "_rms_norm/rms_norm.h"

namespace fused_all_reduce_rms_norm {

// Of one sum: devices of a host that share a model.
inline constexpr int kMaxParts = 8;

struct Params : pyxla::RmsNormParams {
  const void* parts[kMaxParts];
  int count;
  void* residual;
};

// Rows [begin, end) on the calling thread.
void FusedAllReduceRmsNormHost(const Params& params, int64_t begin, int64_t end);

}  // namespace fused_all_reduce_rms_norm

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace fused_all_reduce_rms_norm {

// Of one device's part, so much memory that the devices write to one another.
inline constexpr int64_t kMaxBytes = 512 << 10;
// Of a launch: on each SM at most one, so that all run at the same time.
inline constexpr int kMaxCtas = 256;

// The start of a device's workspace, zero at first. The parts of the other devices follow: [2][count][kMaxBytes], of
// the even and of the odd calls.
struct Header {
  uint32_t epoch;     // calls that have ended
  uint32_t finished;  // CTAs of this call that have ended
  uint32_t padding[30];
  uint32_t flags[kMaxCtas][kMaxParts];  // the last call in which this CTA of that device has written its rows here
};

// The devices that add up; none if count is 0.
struct Peers {
  Header* workspaces[kMaxParts];  // in order of places, each in its device's memory
  int count;
  int place;  // of this device
  int ctas;   // of a launch at most, the same on all devices
  uint64_t timeout_ns;
};

inline int64_t WorkspaceBytes(int count) { return sizeof(Header) + 2 * count * kMaxBytes; }

// With peers params.parts[0] is this device's part.
cudaError_t LaunchFusedAllReduceRmsNorm(cudaStream_t stream, const Params& params, const Peers& peers);

}  // namespace fused_all_reduce_rms_norm
#endif
