#include "_paged_attention/paged_attention_host.h"

#include "paged_attention/paged_attention.h"

namespace paged_attention {

void PagedAttentionHost(const Params& params, const ParallelFor& parallel_for) {
  pyxla::PagedAttentionOnHost(params, parallel_for);
}

}  // namespace paged_attention
