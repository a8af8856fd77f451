// The handlers of paged_attention(query, kv_cache, ...) -> out and of paged_attention_lse(the same) -> out, lse.
#include "_paged_attention/paged_attention_ffi.h"

#include "paged_attention/paged_attention.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"

namespace {

using Arguments = pyxla::PagedAttentionArguments;
using Results = pyxla::PagedAttentionResults;
using Result = ffi::Result<ffi::AnyBuffer>;

ffi::Error RunOnHost(ffi::ThreadPool& pool, const Arguments& arguments, const Results& results) {
  paged_attention::Params params;
  PYXLA_RETURN_IF_ERROR(pyxla::MakePagedAttentionParams(arguments, results, &params));
  return pyxla::RunPagedAttentionOnHost(arguments.op, pool, params, paged_attention::PagedAttentionHost);
}

constexpr auto Host = [](ffi::ThreadPool pool, Result out, Result workspace, auto... arguments) {
  return RunOnHost(pool, {"paged_attention", arguments...}, {*out, {}, *workspace});
};

constexpr auto HostLse = [](ffi::ThreadPool pool, Result out, Result lse, Result workspace, auto... arguments) {
  return RunOnHost(pool, {"paged_attention_lse", arguments...}, {*out, *lse, *workspace});
};

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       pyxla::BindPagedAttentionArguments(ffi::Ffi::Bind()
                                                              .Ctx<ffi::ThreadPool>()
                                                              .Ret<ffi::AnyBuffer>()     // out
                                                              .Ret<ffi::AnyBuffer>()));  // workspace

XLA_FFI_DEFINE_HANDLER(kHostLse, HostLse,
                       pyxla::BindPagedAttentionArguments(ffi::Ffi::Bind()
                                                              .Ctx<ffi::ThreadPool>()
                                                              .Ret<ffi::AnyBuffer>()     // out
                                                              .Ret<ffi::AnyBuffer>()     // lse
                                                              .Ret<ffi::AnyBuffer>()));  // workspace

#if PYXLA_WITH_CUDA
ffi::Error RunOnCuda(cudaStream_t stream, const Arguments& arguments, const Results& results) {
  paged_attention::Params params;
  PYXLA_RETURN_IF_ERROR(pyxla::MakePagedAttentionParams(arguments, results, &params));
  PYXLA_RETURN_IF_ERROR(
      pyxla::CheckPagedAttentionWorkspace(arguments.op, results.workspace, paged_attention::WorkspaceBytes(params)));
  return PYXLA_CUDA_STATUS(arguments.op, paged_attention::LaunchPagedAttention(stream, params));
}

constexpr auto Cuda = [](cudaStream_t stream, Result out, Result workspace, auto... arguments) {
  return RunOnCuda(stream, {"paged_attention", arguments...}, {*out, {}, *workspace});
};

constexpr auto CudaLse = [](cudaStream_t stream, Result out, Result lse, Result workspace, auto... arguments) {
  return RunOnCuda(stream, {"paged_attention_lse", arguments...}, {*out, *lse, *workspace});
};

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       pyxla::BindPagedAttentionArguments(ffi::Ffi::Bind()
                                                              .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                                              .Ret<ffi::AnyBuffer>()    // out
                                                              .Ret<ffi::AnyBuffer>()),  // workspace
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(kCudaLse, CudaLse,
                       pyxla::BindPagedAttentionArguments(ffi::Ffi::Bind()
                                                              .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                                              .Ret<ffi::AnyBuffer>()    // out
                                                              .Ret<ffi::AnyBuffer>()    // lse
                                                              .Ret<ffi::AnyBuffer>()),  // workspace
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(paged_attention, PYXLA_HOST_HANDLER("xla_gpu_paged_attention", kHost)
                                    PYXLA_HOST_HANDLER("xla_gpu_paged_attention_lse", kHostLse)
                                        PYXLA_CUDA_HANDLER("xla_gpu_paged_attention", kCuda)
                                            PYXLA_CUDA_HANDLER("xla_gpu_paged_attention_lse", kCudaLse))
