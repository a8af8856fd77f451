// The handlers of paged_attention_flashinfer(query, kv_cache, ...) -> out: paged_attention of what FlashInfer takes.
#include "_paged_attention/paged_attention_ffi.h"
#include "common/ffi/cuda.h"
#include "common/ffi/op_table.h"
#include "paged_attention_flashinfer/paged_attention_flashinfer.h"
#include "paged_attention_flashinfer/paged_attention_flashinfer_plan.h"

namespace {

constexpr char kOp[] = "paged_attention_flashinfer";

using Arguments = pyxla::PagedAttentionArguments;
using pyxla::Mismatch;
using Result = ffi::Result<ffi::AnyBuffer>;

// What paged_attention takes and this op does not.
ffi::Error CheckSupported(const Arguments& a) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "query", a.query, {ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "query", a.query, 3));
  const int64_t head_dim = a.query.dimensions()[2];
  if (head_dim != 64 && head_dim != 128) return Mismatch(kOp, "query", "a last dimension of 64 or 128", head_dim);
  const int64_t elements = a.query.element_count();
  if (elements > INT32_MAX) return Mismatch(kOp, "query", "fewer than 2^31 elements", elements);
  return pyxla::CheckDtype(kOp, "kv_cache", a.kv_cache, {a.query.element_type()});
}

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(const Arguments& a, Result out, Result workspace, pyxla::PagedAttentionParams* params) {
  PYXLA_RETURN_IF_ERROR(CheckSupported(a));
  PYXLA_RETURN_IF_ERROR(pyxla::MakePagedAttentionParams(a, {*out, {}, *workspace}, params));
  const int64_t positions = params->seqs * params->max_blocks * params->block_size;
  if (positions > INT32_MAX) return Mismatch(kOp, "block_tables", "fewer than 2^31 positions", positions);
  return ffi::Error::Success();
}

// Of the handlers, in the order in which they are bound.
Arguments MakeArguments(ffi::AnyBuffer query, ffi::AnyBuffer kv_cache, ffi::AnyBuffer context_lens,
                        ffi::AnyBuffer block_tables, ffi::AnyBuffer query_start_loc, ffi::AnyBuffer num_seqs,
                        double scale, std::optional<int64_t> sliding_window, std::optional<double> soft_cap) {
  return {.op = kOp,
          .query = query,
          .kv_cache = kv_cache,
          .context_lens = context_lens,
          .block_tables = block_tables,
          .query_start_loc = query_start_loc,
          .num_seqs = num_seqs,
          .alibi_slopes = {},
          .sinks = {},
          .kv_scales = {},
          .scale = scale,
          .sliding_window = sliding_window,
          .soft_cap = soft_cap};
}

template <typename Binding>
auto BindArguments(Binding binding) {
  return pyxla::BindPagedAttentionTensors(std::move(binding))
      .template Attr<double>("scale")
      .template Attr<std::optional<int64_t>>("sliding_window")
      .template Attr<std::optional<double>>("soft_cap");
}

constexpr auto Host = [](ffi::ThreadPool pool, Result out, Result workspace, auto... arguments) -> ffi::Error {
  pyxla::PagedAttentionParams params;
  PYXLA_RETURN_IF_ERROR(MakeParams(MakeArguments(arguments...), out, workspace, &params));
  return pyxla::RunPagedAttentionOnHost(kOp, pool, params, paged_attention_flashinfer::PagedAttentionHost);
};

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       BindArguments(ffi::Ffi::Bind()
                                         .Ctx<ffi::ThreadPool>()
                                         .Ret<ffi::AnyBuffer>()     // out
                                         .Ret<ffi::AnyBuffer>()));  // workspace

#if PYXLA_WITH_CUDA
constexpr auto Cuda = [](cudaStream_t stream, Result out, Result workspace, auto... arguments) -> ffi::Error {
  pyxla::PagedAttentionParams params;
  PYXLA_RETURN_IF_ERROR(MakeParams(MakeArguments(arguments...), out, workspace, &params));
  PYXLA_RETURN_IF_ERROR(
      pyxla::CheckPagedAttentionWorkspace(kOp, *workspace, paged_attention_flashinfer::PlanBytes(params)));
  return PYXLA_CUDA_STATUS(kOp, paged_attention_flashinfer::LaunchPagedAttention(stream, params));
};

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       BindArguments(ffi::Ffi::Bind()
                                         .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                         .Ret<ffi::AnyBuffer>()    // out
                                         .Ret<ffi::AnyBuffer>()),  // workspace
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(paged_attention_flashinfer, PYXLA_HOST_HANDLER("xla_gpu_paged_attention_flashinfer", kHost)
                                               PYXLA_CUDA_HANDLER("xla_gpu_paged_attention_flashinfer", kCuda))
