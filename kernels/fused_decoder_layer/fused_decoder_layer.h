// What a decoder layer computes between its attention and the next layer's:
//
//   r = residual + attention * o_proj^T;                    h = norm(r) * post_attention_norm
//   r = r + (silu(h * gate^T) * (h * up^T)) * down_proj^T;  residual = r
//   out = (norm(r) * input_norm) * qkv_proj^T
//
//   attention:           [tokens, width], T, contiguous, read; so all others
//   residual:            [tokens, hidden], read and written
//   o_proj:              [hidden, width]
//   post_attention_norm: [hidden]
//   gate_up_proj:        [2 * inner, hidden]: gate, then up
//   down_proj:           [hidden, inner]
//   input_norm:          [hidden]
//   qkv_proj:            [columns, hidden], or null: out = norm(r) * input_norm, columns = hidden
//   out:                 [tokens, columns], written
//
// fused_decoder_layer_rotary, the folder's other op, goes on with out as heads of d elements, queries, keys and values: out is
// the queries alone then, rotated, and keys, rotated, and values go into the cache (_rotary/rotary.h, kv_store.h).
//
// T is bfloat16 or float16; norm(r) = r / sqrt(mean(r^2) + eps). Products and sums are formed in float. On the GPU r,
// the gated product and what goes into a product are rounded to T between; on the host only residual and out are, and
// what the cache gets.
// Source: the decoder of "LLaMA", Touvron et al., 2023, arXiv:2302.13971.
// Test: devtool test fused_decoder_layer
#pragma once

#include <cstdint>
#include <functional>

#include "_kv_cache/kv_store.h"
#include "_rotary/rotary.h"
#include "common/float_type.h"

namespace fused_decoder_layer {

/** What the GPU's kernel takes at most: rows of one matrix product. */
constexpr int kMaxTokens = 64;
/** width, hidden and inner are multiples of it: two blocks halve a product's sum, and take 128 of it at a time. */
constexpr int kGranule = 256;
/** d, of fused_decoder_layer_rotary, is a multiple of it: its rotated pairs are loaded 16 at a time. */
constexpr int kHeadGranule = 32;

/** How fused_decoder_layer_rotary goes on: the pairs are (j, j + d / 2), all of a head. */
struct HeadsParams : pyxla::RotaryParams, pyxla::KvStoreParams {
  int64_t heads;  // of the queries
};

struct Params {
  const void* attention;
  void* residual;
  const void *o_proj, *post_attention_norm, *gate_up_proj, *down_proj, *input_norm, *qkv_proj;
  void* out;
  int64_t tokens, width, hidden, inner, columns;
  double eps;
  pyxla::FloatType dtype;
  void* workspace;           // WorkspaceBytes, on the GPU
  const HeadsParams* heads;  // null: out is what the last product returns
};

/** Calls run(begin, end) for pieces of [0, items), at least per_piece long, in any order or at once. */
using ParallelFor =
    std::function<void(int64_t items, int64_t per_piece, const std::function<void(int64_t begin, int64_t end)>& run)>;

// Positions and slots are in range.
void FusedDecoderLayerHost(const Params& params, const ParallelFor& parallel_for);

}  // namespace fused_decoder_layer

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace fused_decoder_layer {

// The same formula stands in fused_decoder_layer.py.
int64_t WorkspaceBytes(const Params& params);

// cudaErrorNoKernelImageForDevice, unless the device's compute capability is 9.0.
cudaError_t LaunchFusedDecoderLayer(cudaStream_t stream, const Params& params);

}  // namespace fused_decoder_layer
#endif
