// Checks and the handlers of fused_decoder_layer(attention, residual(a!), o_proj, post_attention_norm, gate_up_proj,
// down_proj, input_norm, qkv_proj?, eps) -> out, and of fused_decoder_layer_rotary(..., qkv_proj, positions,
// cos_sin_cache, kv_cache(b!), slot_mapping, eps) -> query. See fused_decoder_layer.h.
#include "_kv_cache/kv_store_ffi.h"
#include "_rotary/rotary_ffi.h"
#include "fused_decoder_layer/fused_decoder_layer.h"
#include "pyxla/ffi/checks.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/float_type_of.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/parallel.h"

namespace {

using fused_decoder_layer::Params;
using fused_decoder_layer::RotaryAndCacheParams;
using pyxla::CheckShape;
using pyxla::Mismatch;

struct Arguments {
  const char* op;
  double eps;
  ffi::AnyBuffer attention, residual, o_proj, post_attention_norm, gate_up_proj, down_proj, input_norm;
  std::optional<ffi::AnyBuffer> qkv_proj;
  // fused_decoder_layer_rotary's alone.
  std::optional<ffi::AnyBuffer> positions{}, cos_sin_cache{}, kv_cache{}, slot_mapping{};
};

struct Results {
  ffi::AnyBuffer new_residual;
  std::optional<ffi::AnyBuffer> new_cache;  // fused_decoder_layer_rotary's alone
  ffi::AnyBuffer out;
};

ffi::Error CheckGranule(const char* op, const char* argument, const char* what, int64_t size) {
  if (size > 0 && size % fused_decoder_layer::kGranule == 0) return ffi::Error::Success();
  return Mismatch(op, argument, std::string(what) + " a multiple of " + std::to_string(fused_decoder_layer::kGranule),
                  size);
}

// Checks the arguments that both ops have, and fills in what both platforms' functions take of them.
ffi::Error MakeLayerParams(const Arguments& a, const Results& results, Params* params) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(a.op, "attention", a.attention, {ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(a.op, "attention", a.attention, 2));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(a.op, "residual", a.residual, 2));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(a.op, "down_proj", a.down_proj, 2));
  if (a.qkv_proj) PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(a.op, "qkv_proj", *a.qkv_proj, 2));
  const int64_t tokens = a.attention.dimensions()[0], width = a.attention.dimensions()[1];
  const int64_t hidden = a.residual.dimensions()[1], inner = a.down_proj.dimensions()[1];
  const int64_t columns = a.qkv_proj ? a.qkv_proj->dimensions()[0] : hidden;
  if (tokens > fused_decoder_layer::kMaxTokens) {
    return Mismatch(a.op, "attention", "at most " + std::to_string(fused_decoder_layer::kMaxTokens) + " tokens",
                    tokens);
  }
  PYXLA_RETURN_IF_ERROR(CheckGranule(a.op, "attention", "a width that is", width));
  PYXLA_RETURN_IF_ERROR(CheckGranule(a.op, "residual", "a hidden size that is", hidden));
  PYXLA_RETURN_IF_ERROR(CheckGranule(a.op, "down_proj", "an inner size that is", inner));
  if (columns <= 0 || columns % 8 != 0) return Mismatch(a.op, "qkv_proj", "rows in a positive multiple of 8", columns);

  const auto check = [&](const char* name, const ffi::AnyBuffer& buffer, std::initializer_list<int64_t> shape) {
    ffi::Error error = pyxla::CheckDtype(a.op, name, buffer, {a.attention.element_type()});
    return error.failure() ? error : CheckShape(a.op, name, buffer, shape);
  };
  PYXLA_RETURN_IF_ERROR(check("residual", a.residual, {tokens, hidden}));
  PYXLA_RETURN_IF_ERROR(check("o_proj", a.o_proj, {hidden, width}));
  PYXLA_RETURN_IF_ERROR(check("post_attention_norm", a.post_attention_norm, {hidden}));
  PYXLA_RETURN_IF_ERROR(check("gate_up_proj", a.gate_up_proj, {2 * inner, hidden}));
  PYXLA_RETURN_IF_ERROR(check("down_proj", a.down_proj, {hidden, inner}));
  PYXLA_RETURN_IF_ERROR(check("input_norm", a.input_norm, {hidden}));
  if (a.qkv_proj) PYXLA_RETURN_IF_ERROR(check("qkv_proj", *a.qkv_proj, {columns, hidden}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckNotNegative(a.op, "eps", a.eps));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckInPlace(a.op, "residual", a.residual, results.new_residual));
  *params = {.attention = a.attention.untyped_data(),
             .residual = a.residual.untyped_data(),
             .o_proj = a.o_proj.untyped_data(),
             .post_attention_norm = a.post_attention_norm.untyped_data(),
             .gate_up_proj = a.gate_up_proj.untyped_data(),
             .down_proj = a.down_proj.untyped_data(),
             .input_norm = a.input_norm.untyped_data(),
             .qkv_proj = a.qkv_proj ? a.qkv_proj->untyped_data() : nullptr,
             .out = results.out.untyped_data(),
             .tokens = tokens,
             .width = width,
             .hidden = hidden,
             .inner = inner,
             .columns = columns,
             .eps = a.eps,
             .dtype = pyxla::FloatTypeOf(a.attention.element_type()),
             .workspace = nullptr,
             .rotary = nullptr};
  return ffi::Error::Success();
}

// The same for the arguments of fused_decoder_layer_rotary alone.
ffi::Error MakeRotaryAndCacheParams(const Arguments& a, const Results& results, int64_t columns,
                                    RotaryAndCacheParams* rotary) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(a.op, "cos_sin_cache", *a.cos_sin_cache, 2));
  const int64_t tokens = a.attention.dimensions()[0], d = a.cos_sin_cache->dimensions()[1];
  if (d <= 0 || d % fused_decoder_layer::kHeadGranule != 0) {
    return Mismatch(a.op, "cos_sin_cache",
                    "a last dimension that is a multiple of " + std::to_string(fused_decoder_layer::kHeadGranule), d);
  }
  if (columns % d != 0) {
    return Mismatch(a.op, "qkv_proj", "rows in a multiple of cos_sin_cache's " + std::to_string(d), columns);
  }
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(a.op, "kv_cache", *a.kv_cache, {a.attention.element_type()}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckKvCache(a.op, a.attention, *a.kv_cache));
  const auto dims = a.kv_cache->dimensions();
  if (dims.size() == 5 ? dims[4] != d : dims[3] % d != 0) {
    return Mismatch(a.op, "kv_cache", "heads of cos_sin_cache's size " + std::to_string(d),
                    "shape " + pyxla::ShapeText(dims));
  }
  const int64_t kv_heads = dims.size() == 5 ? dims[3] : dims[3] / d;
  rotary->heads = columns / d - 2 * kv_heads;
  if (rotary->heads <= 0) {
    return Mismatch(a.op, "qkv_proj", "more heads than the " + std::to_string(2 * kv_heads) + " of keys and values",
                    columns / d);
  }
  PYXLA_RETURN_IF_ERROR(CheckShape(a.op, "query", results.out, {tokens, rotary->heads, d}));
  PYXLA_RETURN_IF_ERROR(
      pyxla::MakeRotaryParams(a.op, results.out, *a.positions, *a.cos_sin_cache, /*is_neox=*/true, rotary));
  return pyxla::MakeKvStoreParams(a.op, tokens, kv_heads, *a.kv_cache, *a.slot_mapping, {}, *results.new_cache, rotary);
}

// All of them; `rotary` is filled in for fused_decoder_layer_rotary.
ffi::Error MakeParams(const Arguments& a, const Results& results, RotaryAndCacheParams* rotary, Params* params) {
  PYXLA_RETURN_IF_ERROR(MakeLayerParams(a, results, params));
  const char* out = a.kv_cache ? "query" : "out";
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(a.op, out, results.out, {a.attention.element_type()}));
  if (!a.kv_cache) return CheckShape(a.op, out, results.out, {params->tokens, params->columns});
  PYXLA_RETURN_IF_ERROR(MakeRotaryAndCacheParams(a, results, params->columns, rotary));
  params->rotary = rotary;
  return ffi::Error::Success();
}

ffi::Error RunOnHost(ffi::ThreadPool& pool, const Arguments& arguments, const Results& results) {
  Params params;
  RotaryAndCacheParams rotary;
  PYXLA_RETURN_IF_ERROR(MakeParams(arguments, results, &rotary, &params));
  if (params.rotary != nullptr) {
    PYXLA_RETURN_IF_ERROR(pyxla::CheckPositions(arguments.op, rotary));
    PYXLA_RETURN_IF_ERROR(pyxla::CheckSlots(arguments.op, rotary, params.tokens));
  }
  fused_decoder_layer::FusedDecoderLayerHost(params, [&](int64_t items, int64_t per_piece, const auto& run) {
    pyxla::ParallelFor(pool, items, per_piece, run);
  });
  return ffi::Error::Success();
}

using Result = ffi::Result<ffi::AnyBuffer>;

constexpr auto Host = [](ffi::ThreadPool pool, Result new_residual, Result out, Result /*workspace*/,
                         auto... arguments) {
  return RunOnHost(pool, {"fused_decoder_layer", arguments...}, {*new_residual, {}, *out});
};

constexpr auto HostRotary = [](ffi::ThreadPool pool, Result new_residual, Result new_cache, Result query,
                               Result /*workspace*/, auto... arguments) {
  return RunOnHost(pool, {"fused_decoder_layer_rotary", arguments...}, {*new_residual, *new_cache, *query});
};

// The arguments on both platforms.
template <typename Binding>
auto Bind(Binding&& binding) {
  return std::move(binding)
      .template Attr<double>("eps")
      .template Arg<ffi::AnyBuffer>()                  // attention
      .template Arg<ffi::AnyBuffer>()                  // residual
      .template Arg<ffi::AnyBuffer>()                  // o_proj
      .template Arg<ffi::AnyBuffer>()                  // post_attention_norm
      .template Arg<ffi::AnyBuffer>()                  // gate_up_proj
      .template Arg<ffi::AnyBuffer>()                  // down_proj
      .template Arg<ffi::AnyBuffer>()                  // input_norm
      .template Arg<std::optional<ffi::AnyBuffer>>();  // qkv_proj
}

template <typename Binding>
auto BindRotary(Binding&& binding) {
  return Bind(std::move(binding))
      .template Arg<ffi::AnyBuffer>()   // positions
      .template Arg<ffi::AnyBuffer>()   // cos_sin_cache
      .template Arg<ffi::AnyBuffer>()   // kv_cache
      .template Arg<ffi::AnyBuffer>();  // slot_mapping
}

XLA_FFI_DEFINE_HANDLER(kHost, Host,
                       Bind(ffi::Ffi::Bind()
                                .Ctx<ffi::ThreadPool>()
                                .Ret<ffi::AnyBuffer>()     // new_residual
                                .Ret<ffi::AnyBuffer>()     // out
                                .Ret<ffi::AnyBuffer>()));  // workspace

XLA_FFI_DEFINE_HANDLER(kHostRotary, HostRotary,
                       BindRotary(ffi::Ffi::Bind()
                                      .Ctx<ffi::ThreadPool>()
                                      .Ret<ffi::AnyBuffer>()     // new_residual
                                      .Ret<ffi::AnyBuffer>()     // new_cache
                                      .Ret<ffi::AnyBuffer>()     // query
                                      .Ret<ffi::AnyBuffer>()));  // workspace

#if PYXLA_WITH_CUDA
std::string ComputeCapability() {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return std::to_string(major) + "." + std::to_string(minor) +
         ", which this op does not support; call the ops that it fuses";
}

ffi::Error RunOnCuda(cudaStream_t stream, const Arguments& arguments, const Results& results,
                     ffi::AnyBuffer workspace) {
  const char* op = arguments.op;
  Params params;
  RotaryAndCacheParams rotary;
  PYXLA_RETURN_IF_ERROR(MakeParams(arguments, results, &rotary, &params));
  const int64_t bytes = fused_decoder_layer::WorkspaceBytes(params);
  if (static_cast<int64_t>(workspace.size_bytes()) < bytes) {
    return Mismatch(op, "workspace", "at least " + std::to_string(bytes) + " bytes", workspace.size_bytes());
  }
  params.workspace = workspace.untyped_data();
  const cudaError_t status = fused_decoder_layer::LaunchFusedDecoderLayer(stream, params);
  if (status == cudaErrorNoKernelImageForDevice) {
    return Mismatch(op, "device", "compute capability 9.0 (H100, H200)", ComputeCapability());
  }
  return pyxla::CudaStatus(op, status, "LaunchFusedDecoderLayer", __FILE__, __LINE__);
}

constexpr auto Cuda = [](cudaStream_t stream, Result new_residual, Result out, Result workspace, auto... arguments) {
  return RunOnCuda(stream, {"fused_decoder_layer", arguments...}, {*new_residual, {}, *out}, *workspace);
};

constexpr auto CudaRotary = [](cudaStream_t stream, Result new_residual, Result new_cache, Result query,
                               Result workspace, auto... arguments) {
  return RunOnCuda(stream, {"fused_decoder_layer_rotary", arguments...}, {*new_residual, *new_cache, *query},
                   *workspace);
};

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda,
                       Bind(ffi::Ffi::Bind()
                                .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                .Ret<ffi::AnyBuffer>()    // new_residual
                                .Ret<ffi::AnyBuffer>()    // out
                                .Ret<ffi::AnyBuffer>()),  // workspace
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(kCudaRotary, CudaRotary,
                       BindRotary(ffi::Ffi::Bind()
                                      .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                      .Ret<ffi::AnyBuffer>()    // new_residual
                                      .Ret<ffi::AnyBuffer>()    // new_cache
                                      .Ret<ffi::AnyBuffer>()    // query
                                      .Ret<ffi::AnyBuffer>()),  // workspace
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(fused_decoder_layer, PYXLA_HOST_HANDLER("xla_gpu_fused_decoder_layer", kHost)
                                        PYXLA_HOST_HANDLER("xla_gpu_fused_decoder_layer_rotary", kHostRotary)
                                            PYXLA_CUDA_HANDLER("xla_gpu_fused_decoder_layer", kCuda)
                                                PYXLA_CUDA_HANDLER("xla_gpu_fused_decoder_layer_rotary", kCudaRotary))
