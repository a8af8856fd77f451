#include <algorithm>
#include <climits>

#include "grouped_product/kernels.h"
#include "grouped_product/tensor_core/kernel.cuh"
#include "grouped_product/tuning.h"
#include "pyxla/ceil_div.h"

namespace grouped_product::tensor_core {

using pyxla::CeilDiv;

// No expert has more tiles than its whole ones and one more; those without an expert count as one.
static int64_t MaxTiles(const Params& p) { return p.rows() / ManyRows::kTileRows + p.num_experts + 1; }

// The tiles, their number, the rows.
int64_t OrderBytes(const Params& p) { return static_cast<int64_t>(sizeof(Tile)) * (MaxTiles(p) + 1) + 4 * p.rows(); }

bool Takes(const Params& p) {
  const bool aligned = pyxla::IsAligned(p.x, pyxla::kVectorBytes) && pyxla::IsAligned(p.weight, pyxla::kVectorBytes) &&
                       pyxla::IsAligned(p.out, pyxla::kVectorBytes);
  // The narrowest tiles have 64 columns.
  const int64_t column_tiles = CeilDiv(p.n, 64), slots = std::max<int64_t>(MaxTiles(p), kMaxScannedRows);
  return p.dtype != pyxla::FloatType::kFloat32 && p.k % kChunk == 0 && p.num_experts <= kMaxExperts && aligned &&
         p.rows() <= INT_MAX && column_tiles <= INT_MAX / slots;
}

static KernelParams MakeKernelParams(const Params& p, int tile_n) {
  Tile* tiles = static_cast<Tile*>(p.workspace);
  return {.x = p.x,
          .weight = p.weight,
          .bias = p.bias,
          .experts = p.experts,
          .out = p.out,
          .n = p.n,
          .k = p.k,
          .rows = static_cast<int>(p.rows()),
          .rows_per_x = static_cast<int>(p.x_rows == p.top_k ? 1 : p.top_k),
          .num_experts = static_cast<int>(p.num_experts),
          .column_tiles = static_cast<unsigned>(CeilDiv(p.n, tile_n)),
          .has_cta_per_row = p.rows() <= p.num_experts,
          .order = {.tiles = tiles,
                    .tile_count = reinterpret_cast<int*>(tiles + MaxTiles(p)),
                    .rows = reinterpret_cast<int*>(tiles + MaxTiles(p) + 1)}};
}

template <typename Shape>
static cudaError_t LaunchCtas(cudaStream_t stream, void (*kernel)(KernelParams), int64_t slots, const KernelParams& p) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(slots * p.column_tiles), Shape::kThreads, Shape::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

template <typename T, typename Shape>
static cudaError_t LaunchScanned(cudaStream_t stream, const Params& params) {
  const KernelParams p = MakeKernelParams(params, Shape::kTileN);
  return LaunchCtas<Shape>(stream, ScannedKernel<T, Shape>, p.has_cta_per_row ? p.rows : p.num_experts + 1, p);
}

template <typename T>
static cudaError_t LaunchSorted(cudaStream_t stream, const Params& params) {
  const KernelParams p = MakeKernelParams(params, ManyRows::kTileN);
  OrderKernel<<<1, kOrderThreads, 0, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? LaunchCtas<ManyRows>(stream, SortedKernel<T>, MaxTiles(params), p) : error;
}

template <typename T>
static cudaError_t LaunchFor(cudaStream_t stream, const Params& p) {
  const int64_t rows_per_expert = CeilDiv(p.rows(), std::max<int64_t>(p.num_experts, 1));
  if (p.rows() > kMaxScannedRows || rows_per_expert > kMaxScannedRowsPerExpert) return LaunchSorted<T>(stream, p);
  return Tuning::Choose(rows_per_expert, p.k,
                        [&](auto tuned) { return LaunchScanned<T, FewRows<decltype(tuned)>>(stream, p); });
}

cudaError_t Launch(cudaStream_t stream, const Params& p) {
  return p.dtype == pyxla::FloatType::kFloat16 ? LaunchFor<__half>(stream, p) : LaunchFor<__nv_bfloat16>(stream, p);
}

}  // namespace grouped_product::tensor_core
