// Checks and the handlers of rotary_embedding(positions, query, key, cos_sin_cache, is_neox) -> (query_out, key_out)
// and of rotary_embedding_inplace, which has the same arguments and updates query and key. See rotary_embedding.h.
#include "_rotary/rotary_ffi.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"
#include "pyxla/host/parallel.h"
#include "rotary_embedding/rotary_embedding.h"

namespace {

using pyxla::CheckDtype;
using pyxla::CheckRank;
using pyxla::CheckShape;

constexpr char kOp[] = "rotary_embedding";
constexpr char kInPlaceOp[] = "rotary_embedding_inplace";

struct Arguments {
  ffi::AnyBuffer positions, query, key, cos_sin_cache, query_out, key_out;
  bool is_neox;
};

ffi::Error CheckResult(const char* op, const char* argument, const ffi::AnyBuffer& operand,
                       const ffi::AnyBuffer& result) {
  if (op == kInPlaceOp) return pyxla::CheckInPlace(op, argument, operand, result);
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, argument, result, {operand.element_type()}));
  return CheckShape(op, argument, result, operand.dimensions());
}

// Checks the arguments and fills in what both platforms' functions take.
ffi::Error MakeParams(const char* op, const Arguments& a, rotary_embedding::Params* params) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "query", a.query, {ffi::F32, ffi::BF16, ffi::F16}));
  PYXLA_RETURN_IF_ERROR(CheckRank(op, "query", a.query, 3));
  const int64_t tokens = a.query.dimensions()[0], d = a.query.dimensions()[2];
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, "key", a.key, {a.query.element_type()}));
  PYXLA_RETURN_IF_ERROR(CheckRank(op, "key", a.key, 3));
  PYXLA_RETURN_IF_ERROR(CheckShape(op, "key", a.key, {tokens, a.key.dimensions()[1], d}));
  PYXLA_RETURN_IF_ERROR(pyxla::MakeRotaryParams(op, a.query, a.positions, a.cos_sin_cache, a.is_neox, params));
  PYXLA_RETURN_IF_ERROR(CheckResult(op, "query", a.query, a.query_out));
  PYXLA_RETURN_IF_ERROR(CheckResult(op, "key", a.key, a.key_out));
  params->query = a.query.untyped_data();
  params->key = a.key.untyped_data();
  params->query_out = a.query_out.untyped_data();
  params->key_out = a.key_out.untyped_data();
  params->heads = a.query.dimensions()[1];
  params->kv_heads = a.key.dimensions()[1];
  return ffi::Error::Success();
}

template <const char* kName>
ffi::Error Host(ffi::ThreadPool pool, ffi::AnyBuffer positions, ffi::AnyBuffer query, ffi::AnyBuffer key,
                ffi::AnyBuffer cos_sin_cache, ffi::Result<ffi::AnyBuffer> query_out,
                ffi::Result<ffi::AnyBuffer> key_out, bool is_neox) {
  rotary_embedding::Params params;
  PYXLA_RETURN_IF_ERROR(
      MakeParams(kName, {positions, query, key, cos_sin_cache, *query_out, *key_out, is_neox}, &params));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckPositions(kName, params));
  constexpr int64_t kElementsPerPiece = 1 << 15;
  const int64_t token_elements = (params.heads + params.kv_heads) * params.d;
  pyxla::ParallelFor(pool, params.tokens, kElementsPerPiece / std::max<int64_t>(token_elements, 1),
                     [&](int64_t begin, int64_t end) { rotary_embedding::RotaryEmbeddingHost(params, begin, end); });
  return ffi::Error::Success();
}

// The arguments and results of both ops.
template <typename Binding>
auto Bind(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()  // positions
      .template Arg<ffi::AnyBuffer>()  // query
      .template Arg<ffi::AnyBuffer>()  // key
      .template Arg<ffi::AnyBuffer>()  // cos_sin_cache
      .template Ret<ffi::AnyBuffer>()  // query_out
      .template Ret<ffi::AnyBuffer>()  // key_out
      .template Attr<bool>("is_neox");
}

XLA_FFI_DEFINE_HANDLER(kHost, Host<kOp>, Bind(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
XLA_FFI_DEFINE_HANDLER(kHostInPlace, Host<kInPlaceOp>, Bind(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));

#if PYXLA_WITH_CUDA
template <const char* kName>
ffi::Error Cuda(cudaStream_t stream, ffi::AnyBuffer positions, ffi::AnyBuffer query, ffi::AnyBuffer key,
                ffi::AnyBuffer cos_sin_cache, ffi::Result<ffi::AnyBuffer> query_out,
                ffi::Result<ffi::AnyBuffer> key_out, bool is_neox) {
  rotary_embedding::Params params;
  PYXLA_RETURN_IF_ERROR(
      MakeParams(kName, {positions, query, key, cos_sin_cache, *query_out, *key_out, is_neox}, &params));
  return PYXLA_CUDA_STATUS(kName, rotary_embedding::LaunchRotaryEmbedding(stream, params));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda<kOp>, Bind(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCudaInPlace, Cuda<kInPlaceOp>, Bind(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
                       {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace

PYXLA_OP_TABLE(rotary_embedding, PYXLA_HOST_HANDLER("xla_gpu_rotary_embedding", kHost)
                                     PYXLA_HOST_HANDLER("xla_gpu_rotary_embedding_inplace", kHostInPlace)
                                         PYXLA_CUDA_HANDLER("xla_gpu_rotary_embedding", kCuda)
                                             PYXLA_CUDA_HANDLER("xla_gpu_rotary_embedding_inplace", kCudaInPlace))
