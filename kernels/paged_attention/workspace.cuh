// The workspace: counters, all of which decode's kernel zeroes, then results of splits, prefill's over decode's.
//
//   counters of prefill    one for each tile and kv head: its stored splits; then that of work taken
//   counters of decode     one for each tile that may have several splits, those of few work tiles, that of work taken
//   results                (m, l) of rows, then their O
#pragma once

#include "paged_attention/sequences.cuh"

namespace paged_attention {

// Up to this many tokens, a few for each sequence, the decode kernel takes all: a prefill can only be short, and a
// launch of the prefill kernel takes 5 us even if there is none. See NOTES.md.
inline constexpr int64_t kFewTokens = 128;

// Whether the shapes are those of decodes, with one new token for each sequence or a few.
inline bool IsDecodeCall(const Params& p) {
  return p.tokens <= p.seqs || p.tokens <= DecodeTokens(p) ||
         (p.tokens <= kFewTokens && p.tokens <= p.seqs * TokensOfRows(p, kDecodeRows));
}

// Tiles of kDecodeRows of the sequences that may have several splits.
inline int64_t DecodeTiles(const Params& p) {
  return p.seqs * p.kv_heads * CeilDiv(DecodeTokens(p) * (p.heads / p.kv_heads), kDecodeRows);
}

// Rows of a prefill tile whose keys may be divided, at least.
inline constexpr int kLeastRows = 128;

inline int64_t PrefillCounters(const Params& p) {
  const int64_t tiles = p.tokens * (p.heads / p.kv_heads) / kLeastRows + p.seqs;
  return IsDecodeCall(p) ? 0 : tiles * p.kv_heads + 1;
}

// A tile of decode has at least half of kDecodeRows.
inline int64_t CounterBytes(const Params& p) {
  return CeilDiv((PrefillCounters(p) + 2 * DecodeTiles(p) + kFewTiles + 1) * 4, 256) * 256;
}

inline int64_t ResultBytes(const Params& p, int64_t rows) {
  return rows * (2 + p.head_dim) * static_cast<int64_t>(sizeof(float));
}

}  // namespace paged_attention
