// What the CUDA kernels of paged_attention share: whose a sequence is, and which lengths can be trusted.
#pragma once

#include <cstdint>

#include "paged_attention/paged_attention.h"
#include "pyxla/ceil_div.h"
#include "pyxla/device/math.cuh"
#include "pyxla/device/warp.cuh"

namespace paged_attention {

using namespace pyxla;

// Rows of a sequence and kv head (new tokens times heads of the group) that the decode kernel computes as one tile.
inline constexpr int kDecodeRows = 16;

// New tokens up to which the decode kernel computes a sequence; the prefill kernel computes the others, if it is
// launched. Rows of padding and rows that depend on a wrong length are the decode kernel's.
__host__ __device__ inline int64_t DecodeTokens(const Params& p) {
  const int64_t tokens = kDecodeRows / (p.heads / p.kv_heads);
  return tokens < 1 ? 1 : tokens;
}

__host__ __device__ inline bool IsDecode(const Params& p, int64_t new_tokens) { return new_tokens <= DecodeTokens(p); }

// The new tokens are rows [row, row + new_tokens) of the query and positions [length - new_tokens, length).
struct Sequence {
  int row, new_tokens, length;
  bool is_valid;
};

// Precondition: seq is below a count that IsBatchValid found good.
__device__ inline Sequence ReadSequence(const Params& p, int64_t seq) {
  Sequence s;
  s.row = p.query_start_loc[seq];
  s.new_tokens = p.query_start_loc[seq + 1] - s.row;
  s.length = p.context_lens[seq];
  s.is_valid = s.new_tokens <= s.length && s.length <= p.max_blocks * p.block_size;
  return s;
}

// Whether num_seqs and all of query_start_loc are valid, for all threads of the CTA, which check it together: a
// wrong entry leaves no row of the batch that can be trusted.
__device__ inline bool IsBatchValid(const Params& p) {
  const int count = p.num_seqs[0];
  bool wrong = count < 0 || count > p.seqs;
  if (!wrong) {
    wrong = p.query_start_loc[0] != 0 || p.query_start_loc[count] > p.tokens;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      wrong = wrong || p.query_start_loc[i + 1] < p.query_start_loc[i];
    }
  }
  return !__syncthreads_or(wrong);
}

struct Place {
  int seq, new_tokens, position;
  bool is_padding, is_valid;
};

// The sequence of a token and its position there; the threads of the CTA search for it together.
__device__ inline Place FindPlace(const Params& p, int64_t token) {
  __shared__ int found;
  if (threadIdx.x == 0) found = -1;
  Place place = {};
  place.is_valid = IsBatchValid(p);
  if (!place.is_valid) return place;
  for (int i = threadIdx.x; i < p.num_seqs[0]; i += blockDim.x) {
    if (p.query_start_loc[i] <= token && token < p.query_start_loc[i + 1]) found = i;
  }
  __syncthreads();
  place.seq = found;
  place.is_padding = found < 0;
  if (place.is_padding) return place;

  const Sequence s = ReadSequence(p, place.seq);
  place.new_tokens = s.new_tokens;
  place.position = s.length - s.new_tokens + static_cast<int>(token - s.row);
  place.is_valid = s.is_valid;
  return place;
}

}  // namespace paged_attention
