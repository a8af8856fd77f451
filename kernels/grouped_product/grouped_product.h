// out[t][s] = x[t][s] * weight[e]^T + bias[e], e = experts[t][s]; zeros where there is no expert e
//
//   x:       [tokens, x_rows, k], T, contiguous, read; x_rows is top_k, or 1: x[t][0] for every s
//   weight:  [num_experts, n, k], T, contiguous, read; that of an expert without rows is not read
//   experts: [tokens, top_k], int32, contiguous, read
//   bias:    [num_experts, n], T, contiguous, read; or null: zeros
//   out:     [tokens, top_k, n], T, contiguous, written
//
// T is float, bfloat16 or float16; summed in float and rounded once. Any sizes. A row of out depends bit for bit on its
// own row of x and its expert alone, however many rows there are.
// Source: Shazeer et al., "Outrageously Large Neural Networks", 2017, arXiv:1701.06538.
// Test: devtool test grouped_product
#pragma once

#include <cstdint>
#include <functional>

#include "pyxla/float_type.h"

namespace grouped_product {

struct Params {
  const void *x, *weight;
  const int32_t* experts;
  const void* bias;
  void* out;
  int64_t tokens, x_rows, top_k, num_experts, n, k;
  pyxla::FloatType dtype;
  void* workspace;  // WorkspaceBytes, on the GPU

  int64_t rows() const { return tokens * top_k; }
};

/** Calls run(begin, end) for pieces of [0, items), at least per_piece long, in any order or at once. */
using ParallelFor =
    std::function<void(int64_t items, int64_t per_piece, const std::function<void(int64_t begin, int64_t end)>& run)>;

void GroupedProductHost(const Params& params, const ParallelFor& parallel_for);

}  // namespace grouped_product

#if PYXLA_WITH_CUDA
#include <cuda_runtime_api.h>

namespace grouped_product {

// grouped_product.py has the same formula.
int64_t WorkspaceBytes(const Params& params);

cudaError_t LaunchGroupedProduct(cudaStream_t stream, const Params& params);

}  // namespace grouped_product
#endif
