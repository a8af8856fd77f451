// The handlers of paged_attention for what FlashInfer's kernel takes; paged_attention_lse has none here.
#include "_paged_attention/paged_attention_ffi.h"
#include "paged_attention/paged_attention.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"

namespace {

constexpr char kOp[] = "paged_attention";

using Arguments = pyxla::PagedAttentionArguments;
using Result = ffi::Result<ffi::AnyBuffer>;

template <typename Got>
ffi::Error NotTaken(const char* argument, const std::string& expected, const Got& got) {
  return pyxla::Mismatch(kOp, argument, expected + " with implementation flashinfer", got);
}

// What paged_attention takes and this implementation does not, as the check in paged_attention_flashinfer.py.
ffi::Error CheckSupported(const Arguments& a, const pyxla::PagedAttentionParams& params) {
  const auto dtype = a.query.element_type(), kv_dtype = a.kv_cache.element_type();
  if (dtype == ffi::F32) return NotTaken("query", "dtype bfloat16 or float16", "float32");
  if (params.head_dim != 64 && params.head_dim != 128) {
    return NotTaken("query", "a last dimension of 64 or 128", params.head_dim);
  }
  const int64_t elements = params.tokens * params.heads * params.head_dim;
  if (elements > INT32_MAX) return NotTaken("query", "fewer than 2^31 elements", elements);
  if (kv_dtype != dtype) {
    return NotTaken("kv_cache", std::string("dtype ") + pyxla::DtypeName(dtype), pyxla::DtypeName(kv_dtype));
  }
  const int64_t positions = params.seqs * params.max_blocks * params.block_size;
  if (positions > INT32_MAX) return NotTaken("block_tables", "fewer than 2^31 positions", positions);
  if (a.alibi_slopes) return NotTaken("alibi_slopes", "None", "a tensor");
  if (a.sinks) return NotTaken("sinks", "None", "a tensor");
  return ffi::Error::Success();
}

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(const Arguments& a, Result out, Result workspace, pyxla::PagedAttentionParams* params) {
  PYXLA_RETURN_IF_ERROR(pyxla::MakePagedAttentionParams(a, {*out, {}, *workspace}, params));
  return CheckSupported(a, *params);
}

constexpr auto Host = [](ffi::ThreadPool pool, Result out, Result workspace, auto... arguments) -> ffi::Error {
  pyxla::PagedAttentionParams params;
  PYXLA_RETURN_IF_ERROR(MakeParams({kOp, arguments...}, out, workspace, &params));
  return pyxla::RunPagedAttentionOnHost(kOp, pool, params, paged_attention::PagedAttentionHost);
};

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       pyxla::BindPagedAttentionArguments(ffi::Ffi::Bind()
                                                              .Ctx<ffi::ThreadPool>()
                                                              .Ret<ffi::AnyBuffer>()     // out
                                                              .Ret<ffi::AnyBuffer>()));  // workspace

#if PYXLA_WITH_CUDA
constexpr auto Cuda = [](cudaStream_t stream, Result out, Result workspace, auto... arguments) -> ffi::Error {
  pyxla::PagedAttentionParams params;
  PYXLA_RETURN_IF_ERROR(MakeParams({kOp, arguments...}, out, workspace, &params));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckPagedAttentionWorkspace(kOp, *workspace, paged_attention::WorkspaceBytes(params)));
  return PYXLA_CUDA_STATUS(kOp, paged_attention::LaunchPagedAttention(stream, params));
};

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       pyxla::BindPagedAttentionArguments(ffi::Ffi::Bind()
                                                              .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                                              .Ret<ffi::AnyBuffer>()    // out
                                                              .Ret<ffi::AnyBuffer>()),  // workspace
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(paged_attention, PYXLA_HOST_HANDLER("xla_gpu_paged_attention", kHost)
                                    PYXLA_CUDA_HANDLER("xla_gpu_paged_attention", kCuda))
