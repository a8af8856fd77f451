// Checks and the two handlers of fused_all_reduce_rms_norm(x, residual(a!), weight?, groups, eps, channel, timeout) ->
// out. See fused_all_reduce_rms_norm.h; meeting.h has how the devices wait for one another on the host.
#include "_rms_norm/rms_norm_ffi.h"
#include "fused_all_reduce_rms_norm/fused_all_reduce_rms_norm.h"
#include "fused_all_reduce_rms_norm/group.h"
#include "fused_all_reduce_rms_norm/peers.h"
#include "pyxla/ffi/cuda.h"
#include "pyxla/ffi/op_table.h"

namespace fused_all_reduce_rms_norm {
namespace {

// Checks the arguments and fills in what both platforms' functions take; the parts are those of x.
ffi::Error MakeParams(ffi::AnyBuffer x, ffi::AnyBuffer residual, std::optional<ffi::AnyBuffer> weight,
                      ffi::AnyBuffer new_residual, ffi::AnyBuffer out, ffi::Span<const int64_t> groups, int32_t device,
                      double eps, double timeout, Params* params, Group* group) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "x", x, {ffi::F32, ffi::BF16, ffi::F16}));
  const auto dims = x.dimensions();
  if (dims.size() < 2) return pyxla::Mismatch(kOp, "x", "rank 2 or more", "shape " + pyxla::ShapeText(dims));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype(kOp, "residual", residual, {x.element_type()}));
  PYXLA_RETURN_IF_ERROR(
      pyxla::CheckShape(kOp, "residual", residual, std::vector<int64_t>(dims.begin() + 1, dims.end())));
  PYXLA_RETURN_IF_ERROR(pyxla::MakeRmsNormParams(kOp, residual, weight, out, eps, params));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckInPlace(kOp, "residual", residual, new_residual));
  PYXLA_RETURN_IF_ERROR(pyxla::CheckNotNegative(kOp, "timeout", timeout));
  PYXLA_RETURN_IF_ERROR(FindGroup(groups, device, group));
  const int64_t most = group->devices.size() > 1 ? 1 : kMaxParts;
  if (dims[0] < 1 || dims[0] > most) {
    return pyxla::Mismatch(kOp, "x", most == 1 ? "1 part on each device" : "1 to " + std::to_string(most) + " parts",
                           dims[0]);
  }
  params->residual = residual.untyped_data();
  params->count = static_cast<int>(dims[0]);
  const size_t bytes = x.size_bytes() / dims[0];
  for (int part = 0; part < params->count; ++part) {
    params->parts[part] = static_cast<const char*>(x.untyped_data()) + part * bytes;
  }
  return ffi::Error::Success();
}

// What a device brings to a meeting on the host: its operand, and what the others' must be like.
struct Part {
  const void* data;
  int64_t rows, hidden;
  pyxla::FloatType dtype;
};

ffi::Error Host(ffi::ThreadPool pool, int32_t device, ffi::AnyBuffer x, ffi::AnyBuffer residual,
                std::optional<ffi::AnyBuffer> weight, ffi::Result<ffi::AnyBuffer> new_residual,
                ffi::Result<ffi::AnyBuffer> out, ffi::Span<const int64_t> groups, double eps, int64_t channel,
                double timeout) {
  Params params;
  Group group;
  PYXLA_RETURN_IF_ERROR(
      MakeParams(x, residual, weight, *new_residual, *out, groups, device, eps, timeout, &params, &group));
  if (group.devices.size() <= 1) return pyxla::RmsNormOnHost(pool, params, FusedAllReduceRmsNormHost);

  std::vector<Part> parts;
  const Part own = {x.untyped_data(), params.rows, params.hidden, params.dtype};
  PYXLA_RETURN_IF_ERROR(Enter(group, channel, timeout, own, &parts));
  // Also after an exception: the others wait for it.
  struct Leaving {
    const Group& group;
    int64_t channel;
    ~Leaving() { MeetingOf<Part>(group.devices, channel).Leave(group.place); }
  } const leaving{group, channel};
  params.count = static_cast<int>(parts.size());
  for (int part = 0; part < params.count; ++part) {
    const Part& other = parts[part];
    if (other.rows != own.rows || other.hidden != own.hidden || other.dtype != own.dtype) {
      return pyxla::Mismatch(kOp, "channel", "the same call on all devices", "calls of several shapes or dtypes");
    }
    params.parts[part] = other.data;
  }
  return pyxla::RmsNormOnHost(pool, params, FusedAllReduceRmsNormHost);
}

template <typename Context>
auto Bind() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Ctx<ffi::DeviceOrdinal>()
      .template Arg<ffi::AnyBuffer>()                 // x
      .template Arg<ffi::AnyBuffer>()                 // residual
      .template Arg<std::optional<ffi::AnyBuffer>>()  // weight
      .template Ret<ffi::AnyBuffer>()                 // new_residual
      .template Ret<ffi::AnyBuffer>()                 // out
      .template Attr<ffi::Span<const int64_t>>("groups")
      .template Attr<double>("eps")
      .template Attr<int64_t>("channel")
      .template Attr<double>("timeout");
}

XLA_FFI_DEFINE_HANDLER(kHost, Host, Bind<ffi::ThreadPool>());

#if PYXLA_WITH_CUDA
ffi::Error Cuda(cudaStream_t stream, int32_t device, ffi::AnyBuffer x, ffi::AnyBuffer residual,
                std::optional<ffi::AnyBuffer> weight, ffi::Result<ffi::AnyBuffer> new_residual,
                ffi::Result<ffi::AnyBuffer> out, ffi::Span<const int64_t> groups, double eps, int64_t channel,
                double timeout) {
  Params params;
  Group group;
  Peers peers = {};
  PYXLA_RETURN_IF_ERROR(
      MakeParams(x, residual, weight, *new_residual, *out, groups, device, eps, timeout, &params, &group));
  if (group.devices.size() > 1) {
    if (static_cast<int64_t>(x.size_bytes()) > kMaxBytes) {
      return pyxla::Mismatch(kOp, "x", "at most " + std::to_string(kMaxBytes) + " bytes on each device",
                             x.size_bytes());
    }
    PYXLA_RETURN_IF_ERROR(ConnectPeers(group, channel, timeout, &peers));
  }
  return PYXLA_CUDA_STATUS(kOp, LaunchFusedAllReduceRmsNorm(stream, params, peers));
}

XLA_FFI_DEFINE_HANDLER(kCuda, Cuda, Bind<ffi::PlatformStream<cudaStream_t>>(), {ffi::Traits::kCmdBufferCompatible});
#endif

}  // namespace
}  // namespace fused_all_reduce_rms_norm

PYXLA_OP_TABLE(fused_all_reduce_rms_norm,
               PYXLA_HOST_HANDLER("xla_gpu_fused_all_reduce_rms_norm", fused_all_reduce_rms_norm::kHost)
                   PYXLA_CUDA_HANDLER("xla_gpu_fused_all_reduce_rms_norm", fused_all_reduce_rms_norm::kCuda))
