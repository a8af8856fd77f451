// The kernels of grouped_product, from which grouped_product.cu chooses.
#pragma once

#include <cuda_runtime_api.h>

#include "grouped_product/grouped_product.h"

namespace grouped_product {

namespace tensor_core {

/** Bytes of the order of the rows. */
int64_t OrderBytes(const Params& params);

/** Whether these kernels take the sizes, the dtype and the alignment; below 2^31 rows their number changes nothing. */
bool Takes(const Params& params);

/** For params that it takes, with rows and columns. */
cudaError_t Launch(cudaStream_t stream, const Params& params);

}  // namespace tensor_core

namespace generic {

/** For all params with rows and columns. */
cudaError_t Launch(cudaStream_t stream, const Params& params);

}  // namespace generic

}  // namespace grouped_product
