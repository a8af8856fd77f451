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
