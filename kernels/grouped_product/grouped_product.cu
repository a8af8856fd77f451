#include "grouped_product/grouped_product.h"
#include "grouped_product/kernels.h"

namespace grouped_product {

int64_t WorkspaceBytes(const Params& params) { return tensor_core::OrderBytes(params); }

cudaError_t LaunchGroupedProduct(cudaStream_t stream, const Params& params) {
  if (params.rows() == 0 || params.n == 0) return cudaSuccess;
  return tensor_core::Takes(params) ? tensor_core::Launch(stream, params) : generic::Launch(stream, params);
}

}  // namespace grouped_product
