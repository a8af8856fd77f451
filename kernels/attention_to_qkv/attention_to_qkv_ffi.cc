// Checks and the two handlers of attention_to_qkv(attention, residual(a!), o_proj, post_attention_norm, gate_up_proj,
// down_proj, input_norm, qkv_proj?, eps) -> out. See attention_to_qkv.h.
#include <cmath>
#include <vector>

#include "attention_to_qkv/attention_to_qkv.h"
#include "common/checks.h"
#include "common/cuda.h"
#include "common/dtype.h"
#include "common/op_table.h"
#include "common/parallel.h"

namespace {

using attention_to_qkv::Params;
using pyxla::CheckShape;
using pyxla::Mismatch;

constexpr char kOp[] = "attention_to_qkv";

struct Arguments {
  ffi::AnyBuffer attention, residual, o_proj, post_attention_norm, gate_up_proj, down_proj, input_norm;
  std::optional<ffi::AnyBuffer> qkv_proj;
  double eps;
};

ffi::Error CheckGranule(const char* argument, const char* what, int64_t size) {
  if (size > 0 && size % attention_to_qkv::kGranule == 0) return ffi::Error::Success();
  return Mismatch(kOp, argument, std::string(what) + " a multiple of " + std::to_string(attention_to_qkv::kGranule),
                  size);
}

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(const Arguments& a, ffi::AnyBuffer new_residual, ffi::AnyBuffer out, Params* params) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "attention", a.attention, {ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "attention", a.attention, 2));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "residual", a.residual, 2));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "down_proj", a.down_proj, 2));
  if (a.qkv_proj) PYXLA_RETURN_IF_ERROR(pyxla::CheckRank(kOp, "qkv_proj", *a.qkv_proj, 2));
  const int64_t tokens = a.attention.dimensions()[0], width = a.attention.dimensions()[1];
  const int64_t hidden = a.residual.dimensions()[1], inner = a.down_proj.dimensions()[1];
  const int64_t columns = a.qkv_proj ? a.qkv_proj->dimensions()[0] : hidden;
  if (tokens > attention_to_qkv::kMaxTokens) {
    return Mismatch(kOp, "attention", "at most " + std::to_string(attention_to_qkv::kMaxTokens) + " tokens", tokens);
  }
  PYXLA_RETURN_IF_ERROR(CheckGranule("attention", "a width that is", width));
  PYXLA_RETURN_IF_ERROR(CheckGranule("residual", "a hidden size that is", hidden));
  PYXLA_RETURN_IF_ERROR(CheckGranule("down_proj", "an inner size that is", inner));
  if (columns <= 0 || columns % 8 != 0) return Mismatch(kOp, "qkv_proj", "rows in a positive multiple of 8", columns);

  const auto check = [&](const char* name, const ffi::AnyBuffer& buffer, std::initializer_list<int64_t> shape) {
    ffi::Error error = pyxla::CheckDtype(kOp, name, buffer, {a.attention.element_type()});
    return error.failure() ? error : CheckShape(kOp, name, buffer, shape);
  };
  PYXLA_RETURN_IF_ERROR(check("residual", a.residual, {tokens, hidden}));
  PYXLA_RETURN_IF_ERROR(check("o_proj", a.o_proj, {hidden, width}));
  PYXLA_RETURN_IF_ERROR(check("post_attention_norm", a.post_attention_norm, {hidden}));
  PYXLA_RETURN_IF_ERROR(check("gate_up_proj", a.gate_up_proj, {2 * inner, hidden}));
  PYXLA_RETURN_IF_ERROR(check("down_proj", a.down_proj, {hidden, inner}));
  PYXLA_RETURN_IF_ERROR(check("input_norm", a.input_norm, {hidden}));
  if (a.qkv_proj) PYXLA_RETURN_IF_ERROR(check("qkv_proj", *a.qkv_proj, {columns, hidden}));
  PYXLA_RETURN_IF_ERROR(check("out", out, {tokens, columns}));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckInPlace(kOp, "residual", a.residual, new_residual));
  *params = {.attention = a.attention.untyped_data(),
             .residual = a.residual.untyped_data(),
             .o_proj = a.o_proj.untyped_data(),
             .post_attention_norm = a.post_attention_norm.untyped_data(),
             .gate_up_proj = a.gate_up_proj.untyped_data(),
             .down_proj = a.down_proj.untyped_data(),
             .input_norm = a.input_norm.untyped_data(),
             .qkv_proj = a.qkv_proj ? a.qkv_proj->untyped_data() : nullptr,
             .out = out.untyped_data(),
             .tokens = tokens,
             .width = width,
             .hidden = hidden,
             .inner = inner,
             .columns = columns,
             .eps = a.eps,
             .dtype = pyxla::FloatTypeOf(a.attention.element_type()),
             .workspace = nullptr};
  return ffi::Error::Success();
}

template <typename From>
std::vector<float> Floats(const From* from, int64_t n) {
  std::vector<float> floats(n);
  pyxla::Convert(from, floats.data(), n);
  return floats;
}

// The formula of attention_to_qkv.h, line by line, in floats.
template <typename T>
void RunOnHost(ffi::ThreadPool& pool, const Params& p) {
  const auto product = [&](const std::vector<float>& x, const void* weight, int64_t k, int64_t columns) {
    constexpr int64_t kMultiplicationsPerPiece = 1 << 20;
    std::vector<float> out(p.tokens * columns);
    pyxla::ParallelFor(pool, columns, kMultiplicationsPerPiece / (p.tokens * k), [&](int64_t begin, int64_t end) {
      attention_to_qkv::MultiplyHost(p.dtype, x.data(), weight, out.data(), p.tokens, k, columns, begin, end);
    });
    return out;
  };
  T* residual = static_cast<T*>(p.residual);
  std::vector<float> r = Floats(residual, p.tokens * p.hidden), h(r.size());
  const auto add = [&](const std::vector<float>& x) {
    for (size_t i = 0; i < r.size(); ++i) r[i] += x[i];
  };

  add(product(Floats(static_cast<const T*>(p.attention), p.tokens * p.width), p.o_proj, p.width, p.hidden));
  attention_to_qkv::NormHost(p, r.data(), p.post_attention_norm, h.data());
  const std::vector<float> gate_up = product(h, p.gate_up_proj, p.hidden, 2 * p.inner);
  std::vector<float> gated(p.tokens * p.inner);
  for (int64_t token = 0; token < p.tokens; ++token) {
    for (int64_t i = 0; i < p.inner; ++i) {
      const float gate = gate_up[token * 2 * p.inner + i], up = gate_up[(token * 2 + 1) * p.inner + i];
      gated[token * p.inner + i] = gate / (1 + std::exp(-gate)) * up;
    }
  }
  add(product(gated, p.down_proj, p.inner, p.hidden));
  pyxla::Convert(r.data(), residual, p.tokens * p.hidden);
  attention_to_qkv::NormHost(p, r.data(), p.input_norm, h.data());
  const std::vector<float> out = p.qkv_proj == nullptr ? h : product(h, p.qkv_proj, p.hidden, p.columns);
  pyxla::Convert(out.data(), static_cast<T*>(p.out), p.tokens * p.columns);
}

constexpr auto Host = [](ffi::ThreadPool pool, auto new_residual, auto out, auto /*workspace*/, auto... arguments) {
  Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams({arguments...}, *new_residual, *out, &params));
  if (params.tokens == 0) return ffi::Error::Success();
  pyxla::DispatchFloat(params.dtype, [&](auto tag) { RunOnHost<typename decltype(tag)::type>(pool, params); });
  return ffi::Error::Success();
};

// The results and arguments on both platforms.
template <typename Binding>
auto Bind(Binding binding) {
  return std::move(binding)
      .template Ret<ffi::AnyBuffer>()                 // new_residual
      .template Ret<ffi::AnyBuffer>()                 // out
      .template Ret<ffi::AnyBuffer>()                 // workspace
      .template Arg<ffi::AnyBuffer>()                 // attention
      .template Arg<ffi::AnyBuffer>()                 // residual
      .template Arg<ffi::AnyBuffer>()                 // o_proj
      .template Arg<ffi::AnyBuffer>()                 // post_attention_norm
      .template Arg<ffi::AnyBuffer>()                 // gate_up_proj
      .template Arg<ffi::AnyBuffer>()                 // down_proj
      .template Arg<ffi::AnyBuffer>()                 // input_norm
      .template Arg<std::optional<ffi::AnyBuffer>>()  // qkv_proj
      .template Attr<double>("eps");
}

XLA_FFI_DEFINE_HANDLER(kHost, Host, Bind(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));

#if PYXLA_WITH_CUDA
std::string ComputeCapability() {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return std::to_string(major) + "." + std::to_string(minor) + ", which takes the ops that this one stands for";
}

constexpr auto Cuda = [](cudaStream_t stream, auto new_residual, auto out, auto workspace, auto... arguments) {
  Params params;
  PYXLA_RETURN_IF_ERROR(MakeParams({arguments...}, *new_residual, *out, &params));
  const int64_t bytes = attention_to_qkv::WorkspaceBytes(params);
  if (static_cast<int64_t>(workspace->size_bytes()) < bytes) {
    return Mismatch(kOp, "workspace", "at least " + std::to_string(bytes) + " bytes", workspace->size_bytes());
  }
  params.workspace = workspace->untyped_data();
  const cudaError_t status = attention_to_qkv::LaunchAttentionToQkv(stream, params);
  if (status == cudaErrorNoKernelImageForDevice) {
    return Mismatch(kOp, "device", "compute capability 9.0 (H100, H200)", ComputeCapability());
  }
  return pyxla::CudaStatus(kOp, status, "LaunchAttentionToQkv", __FILE__, __LINE__);
};

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda, Bind(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(attention_to_qkv, PYXLA_HOST_HANDLER("xla_gpu_attention_to_qkv", kHost)
                                     PYXLA_CUDA_HANDLER("xla_gpu_attention_to_qkv", kCuda))
