// out[t][h] = sum_j softmax_j(logit[t][h][j]) * value[j][h / group], group = heads / kv_heads
// logit[t][h][j] = cap(scale * query[t][h] . key[j][h / group]) + alibi_slopes[h] * (position of j - position of t)
// lse[t][h] = log(sum_j e^logit[t][h][j])
//
//   query:           [tokens, heads, head_dim], T, contiguous, read
//   kv_cache:        [2, blocks, block_size, kv_heads, head_dim], T or float8 (e4m3fn), contiguous, read; [0] keys, [1]
//                    values
//   context_lens:    [seqs], int32, read; tokens of each sequence in the cache, the new ones included
//   block_tables:    [seqs, max_blocks], int32, read; position j of a sequence lies in block table[j / block_size]
//   query_start_loc: [seqs + 1], int32, read; the new tokens of sequence s are rows [loc[s], loc[s + 1]) of query
//   num_seqs:        [1], int32, read; sequences and rows past it are padding: their output is zero, their lse -inf
//   alibi_slopes:    [heads], float, read
//   sinks:           [heads], float, read; one more logit of each head in the softmax and in lse, without a value
//   kv_scales:       [2, kv_heads], float, read; factors of the stored keys and values
//   out:             [tokens, heads, head_dim], T, contiguous, written
//   lse:             [tokens, heads], float, contiguous, written
//
// The new tokens are the last ones of their context. A token at position i sees positions (i - window, i], and nothing
// else is ever multiplied in, not even by zero: what other slots hold, NaN included, cannot leak. cap(x) = x without a
// soft cap, else soft_cap * tanh(x / soft_cap). T is float, bfloat16 or float16; logits, softmax and sums are float.
//
// Limits: head_dim a multiple of 8 up to 256, block_size 1 to 256, heads a multiple of kv_heads. Lengths and block ids
// are data: the host function's caller has checked them; the CUDA function reads nothing out of bounds and fills every
// row that depends on a wrong value with NaN.
// Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
// arXiv:2309.06180; Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv:1805.02867.
#pragma once

#include <cstdint>
#include <functional>

namespace pyxla {

/** Of the operands. */
enum class PagedAttentionDtype { kFloat32, kBFloat16, kFloat16, kFloat8E4M3 };

/** The longest head: query's last dimension. */
inline constexpr int kPagedAttentionMaxHeadDim = 256;
/** What its length is a multiple of. */
inline constexpr int kPagedAttentionHeadDimUnit = 8;
/** The most positions in a block of the cache. */
inline constexpr int kPagedAttentionMaxBlockSize = 256;

/** What both platforms' functions take; the pointers as above. */
struct PagedAttentionParams {
  const void* query;
  const void* kv_cache;
  const int32_t* context_lens;
  const int32_t* block_tables;
  const int32_t* query_start_loc;
  const int32_t* num_seqs;
  const float* alibi_slopes;  // null: none
  const float* sinks;         // null: none
  const float* kv_scales;     // null: all ones
  void* out;
  float* lse;       // null: not wanted
  void* workspace;  // CUDA only: as much as the op registers, 128-byte aligned, any contents
  int64_t tokens, heads, kv_heads, head_dim;
  int64_t blocks, block_size;
  int64_t seqs, max_blocks;
  int64_t window;  // a token sees itself and the window - 1 before it; INT32_MAX: all
  float scale;
  float soft_cap;  // 0: none
  PagedAttentionDtype dtype;
  PagedAttentionDtype kv_dtype;  // as dtype, or kFloat8E4M3
};

/** Runs body(begin, end) over [0, n) in pieces of at most `grain`, on any threads, and returns when all are done. */
using PagedAttentionParallelFor =
    std::function<void(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body)>;

}  // namespace pyxla
