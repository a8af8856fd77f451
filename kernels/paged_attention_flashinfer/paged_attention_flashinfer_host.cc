#include "_paged_attention/paged_attention_host.h"
#include "paged_attention_flashinfer/paged_attention_flashinfer.h"

namespace paged_attention_flashinfer {

void PagedAttentionHost(const pyxla::PagedAttentionParams& params,
                        const pyxla::PagedAttentionParallelFor& parallel_for) {
  pyxla::PagedAttentionOnHost(params, parallel_for);
}

}  // namespace paged_attention_flashinfer
