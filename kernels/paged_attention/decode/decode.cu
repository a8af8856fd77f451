#include <algorithm>

#include "paged_attention/decode/plan.cuh"
#include "paged_attention/kernels.h"

namespace paged_attention {

// The kernel counts rows and work tiles in 32 bits, and copies 16 bytes at a time.
bool DecodeCovers(const Params& p) {
  const int64_t element = p.kv_dtype == Dtype::kFloat8E4M3 ? 1 : 2, most = INT32_MAX;
  // Kernels step some KV tiles past a context, and count its keys in 32 bits.
  const int64_t longest = most - 4096;
  // Of a sequence's split, at most.
  const int64_t tiles = std::max(CeilDiv(p.heads, p.kv_heads), int64_t{kMoreRows / 8});
  return p.dtype != Dtype::kFloat32 && p.head_dim * element % 16 == 0 && p.blocks * p.block_size <= most &&
         p.max_blocks * p.block_size <= longest && p.tokens * p.heads + p.seqs * decode::kSequenceTiles * tiles <= most;
}

cudaError_t LaunchDecode(cudaStream_t stream, const Params& p, bool all_rows) {
  if (p.kv_dtype == Dtype::kFloat8E4M3) return decode::LaunchFloat8(stream, p, all_rows);
  if (p.dtype == Dtype::kFloat16) return decode::LaunchFloat16(stream, p, all_rows);
  return decode::LaunchBFloat16(stream, p, all_rows);
}

int64_t decode::ResultRows(const Params& p) { return SlotRows(p) + FewRows(p); }

}  // namespace paged_attention
