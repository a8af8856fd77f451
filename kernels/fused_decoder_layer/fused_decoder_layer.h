// A decoder layer after its attention, and the next layer's qkv projection:
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
// In fused_decoder_layer_rotary, the folder's other op, columns are heads of d elements, of queries, keys and values.
// Queries and keys are rotated (_rotary/rotary.h); out is the queries, keys and values are stored in the cache
// (_kv_cache/kv_store.h).
//
// T is bfloat16 or float16; norm(r) = r / sqrt(mean(r^2) + eps). Products and sums are float. On the GPU r, the
// gated activations and the inputs of a matrix product are rounded to T; on the host only residual, out and what is
// stored in the cache are.
// Source: the decoder of "LLaMA", Touvron et al., 2023, arXiv:2302.13971.
// Test: devtool test fused_decoder_layer
#pragma once

#include <cstdint>
#include <functional>

#include "_kv_cache/kv_store.h"
#include "_rotary/rotary.h"
#include "pyxla/float_type.h"

namespace fused_decoder_layer {

/** The most tokens that the GPU's kernel takes: the rows of one MMA. */
constexpr int kMaxTokens = 64;
/** width, hidden and inner are multiples of it: two CTAs have half of k each, and multiply 128 of it per stage. */
constexpr int kGranule = 256;
/** d, of fused_decoder_layer_rotary, is a multiple of it: a tile has 16 rotated pairs of a head. */
constexpr int kHeadGranule = 32;

/** What fused_decoder_layer_rotary takes besides; the pairs are (j, j + d / 2), all of a head. */
struct RotaryAndCacheParams : pyxla::RotaryParams, pyxla::KvStoreParams {
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
  void* workspace;                     // WorkspaceBytes, on the GPU
  const RotaryAndCacheParams* rotary;  // null: fused_decoder_layer
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

// fused_decoder_layer.py has the same formula.
int64_t WorkspaceBytes(const Params& params);

// cudaErrorNoKernelImageForDevice, unless the device's compute capability is 9.0.
cudaError_t LaunchFusedDecoderLayer(cudaStream_t stream, const Params& params);

}  // namespace fused_decoder_layer
#endif
