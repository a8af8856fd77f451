// paged_attention of what FlashInfer's kernel for ragged batches takes: _paged_attention/paged_attention.h has the
// formula and the pointers.
//
// Limits: query, cache and out bfloat16 or float16, head_dim 64 or 128, no alibi_slopes, sinks, kv_scales or lse; fewer
// than 2^31 elements of query, and of positions in block_tables. Sequences, rows and wrong values as in
// _paged_attention/paged_attention.h; but keys and values of a context are multiplied also by the zero weight of the
// tokens that do not see them, and logits beyond 3e4 are not told from masked ones. Source: Ye et al., "FlashInfer:
// Efficient and Customizable Attention Engine for LLM Inference Serving", 2025, arXiv:2501.01005. Test: devtool test
// paged_attention_flashinfer
#pragma once

#include "_paged_attention/paged_attention.h"

namespace paged_attention_flashinfer {

void PagedAttentionHost(const pyxla::PagedAttentionParams& params,
                        const pyxla::PagedAttentionParallelFor& parallel_for);

}  // namespace paged_attention_flashinfer

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace paged_attention_flashinfer {

cudaError_t LaunchPagedAttention(cudaStream_t stream, const pyxla::PagedAttentionParams& params);

}  // namespace paged_attention_flashinfer
#endif
