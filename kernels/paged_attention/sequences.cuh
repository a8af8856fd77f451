// What the CUDA kernels of paged_attention share: whose a sequence is, and which lengths can be trusted.
#pragma once

#include <cstdint>

#include "paged_attention/paged_attention.h"
#include "pyxla/ceil_div.h"
#include "pyxla/device/math.cuh"
#include "pyxla/device/warp.cuh"

namespace paged_attention {

using namespace pyxla;

// Rows of a sequence and kv head (new tokens times heads of the group) up to which the decode kernel computes it:
// kMoreRows if the shapes are those for which it is the faster one, see NOTES.md.
inline constexpr int kDecodeRows = 16, kMoreRows = 32;
// These shapes: few work tiles, of contexts of at most kFewKeys, or many sequences times kv heads.
inline constexpr int64_t kFewKeys = 16384, kManyHeads = 256;
// Up to so many of decode's work tiles are few: several CTAs compute each. None waits for a slot.
inline constexpr int kFewTiles = 44;

inline bool HasManyHeads(const Params& p) { return p.seqs * p.kv_heads >= kManyHeads; }

// The tokens of `rows` rows, at least one.
inline int64_t TokensOfRows(const Params& p, int64_t rows) {
  const int64_t group = p.heads / p.kv_heads;
  return group > rows ? 1 : rows / group;
}

// New tokens up to which the decode kernel computes a sequence; the prefill kernel computes the others, if it is
// launched. Rows of padding and rows that depend on a wrong length are the decode kernel's.
inline int64_t DecodeTokens(const Params& p) {
  const int64_t more = TokensOfRows(p, kMoreRows), tiles = p.seqs * p.kv_heads * (kMoreRows / kDecodeRows);
  const bool has_few_tiles = tiles <= kFewTiles && p.max_blocks * p.block_size <= kFewKeys;
  const bool is_covered = p.head_dim <= 128 && p.kv_dtype != Dtype::kFloat8E4M3;
  const bool takes_more = is_covered && p.tokens <= p.seqs * more && (has_few_tiles || HasManyHeads(p));
  return takes_more ? more : TokensOfRows(p, kDecodeRows);
}

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
