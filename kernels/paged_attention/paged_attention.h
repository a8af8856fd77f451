// The functions of paged_attention and paged_attention_lse for both platforms; _paged_attention/paged_attention.h has
// the formula and the pointers. Test: devtool test paged_attention
#pragma once

#include "_paged_attention/paged_attention.h"

namespace paged_attention {

using Params = pyxla::PagedAttentionParams;
using Dtype = pyxla::PagedAttentionDtype;
using ParallelFor = pyxla::PagedAttentionParallelFor;

inline constexpr int kMaxHeadDim = pyxla::kPagedAttentionMaxHeadDim;
inline constexpr int kHeadDimUnit = pyxla::kPagedAttentionHeadDimUnit;

void PagedAttentionHost(const Params& params, const ParallelFor& parallel_for);

}  // namespace paged_attention

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace paged_attention {

// Follows from shapes and dtypes; workspace_bytes in paged_attention.py computes the same.
int64_t WorkspaceBytes(const Params& params);

cudaError_t LaunchPagedAttention(cudaStream_t stream, const Params& params);

}  // namespace paged_attention
#endif
