#include "fused_all_reduce_rms_norm/peers.h"

#if PYXLA_WITH_CUDA
#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "pyxla/ffi/cuda.h"

namespace fused_all_reduce_rms_norm {
namespace {

// What a device brings to the first meeting.
struct Place {
  int device;
  int multiprocessors;
  Header* workspace;  // null: it failed
};

// Allows allocations on this thread while it captures a stream.
class Relaxed {
 public:
  Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

ffi::Error Allocate(int count, Place* place) {
  PYXLA_RETURN_IF_ERROR(PYXLA_CUDA_STATUS(kOp, cudaGetDevice(&place->device)));
  PYXLA_RETURN_IF_ERROR(PYXLA_CUDA_STATUS(
      kOp, cudaDeviceGetAttribute(&place->multiprocessors, cudaDevAttrMultiProcessorCount, place->device)));
  // A stream of its own: the default one may not be used while another is captured.
  void* memory = nullptr;
  cudaStream_t stream;
  PYXLA_RETURN_IF_ERROR(PYXLA_CUDA_STATUS(kOp, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
  cudaError_t status = cudaMalloc(&memory, WorkspaceBytes(count));
  if (status == cudaSuccess) status = cudaMemsetAsync(memory, 0, sizeof(Header), stream);
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  PYXLA_RETURN_IF_ERROR(PYXLA_CUDA_STATUS(kOp, status));
  place->workspace = static_cast<Header*>(memory);
  return ffi::Error::Success();
}

ffi::Error EnableAccess(const Group& group, const std::vector<Place>& places) {
  const int own = places[group.place].device;
  for (size_t other = 0; other < places.size(); ++other) {
    if (other == group.place) continue;
    const int peer = places[other].device;
    // Tests call several handlers on one GPU.
    if (peer == own) continue;
    int can = 0;
    PYXLA_RETURN_IF_ERROR(PYXLA_CUDA_STATUS(kOp, cudaDeviceCanAccessPeer(&can, own, peer)));
    if (!can) {
      return pyxla::Mismatch(kOp, "groups", "GPUs that reach each other's memory",
                             "GPUs " + std::to_string(own) + " and " + std::to_string(peer));
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    // XLA has enabled it: not an error, but the runtime keeps it.
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
      continue;
    }
    PYXLA_RETURN_IF_ERROR(PYXLA_CUDA_STATUS(kOp, status));
  }
  return ffi::Error::Success();
}

// Exchanges an item with the other devices, which keep nothing of this call.
template <typename Item>
ffi::Error Exchange(const Group& group, int64_t channel, double timeout, const Item& item, std::vector<Item>* items) {
  PYXLA_RETURN_IF_ERROR(Enter(group, channel, timeout, item, items));
  MeetingOf<Item>(group.devices, channel).Leave(group.place);
  return ffi::Error::Success();
}

ffi::Error FailedElsewhere() {
  return pyxla::Mismatch(kOp, "groups", "a workspace on each device", "an error of another device");
}

ffi::Error Connect(const Group& group, int64_t channel, double timeout, Peers* peers) {
  const Relaxed relaxed;
  const int count = static_cast<int>(group.devices.size());
  // A device that fails comes too, so that the others do not wait for it.
  Place own = {};
  ffi::Error allocated = Allocate(count, &own);
  std::vector<Place> places;
  ffi::Error met = Exchange(group, channel, timeout, own, &places);
  if (allocated.failure()) return allocated;
  PYXLA_RETURN_IF_ERROR(met);
  for (const Place& place : places) {
    if (place.workspace == nullptr) return FailedElsewhere();
  }

  ffi::Error enabled = EnableAccess(group, places);
  std::vector<bool> all;
  met = Exchange(group, channel, timeout, enabled.success(), &all);
  if (enabled.failure()) return enabled;
  PYXLA_RETURN_IF_ERROR(met);
  if (!std::all_of(all.begin(), all.end(), [](bool success) { return success; })) return FailedElsewhere();

  peers->count = count;
  peers->place = static_cast<int>(group.place);
  peers->ctas = kMaxCtas;
  for (int place = 0; place < count; ++place) {
    peers->workspaces[place] = places[place].workspace;
    peers->ctas = std::min(peers->ctas, places[place].multiprocessors);
  }
  return ffi::Error::Success();
}

}  // namespace

ffi::Error ConnectPeers(const Group& group, int64_t channel, double timeout, Peers* peers) {
  static auto* const mutex = new std::mutex;
  static auto* const connected = new std::map<std::tuple<std::vector<int64_t>, int64_t, size_t>, Peers>;
  const std::tuple key(group.devices, channel, group.place);
  {
    std::lock_guard<std::mutex> lock(*mutex);
    if (const auto found = connected->find(key); found != connected->end()) *peers = found->second;
  }
  if (peers->count == 0) {
    PYXLA_RETURN_IF_ERROR(Connect(group, channel, timeout, peers));
    std::lock_guard<std::mutex> lock(*mutex);
    connected->emplace(key, *peers);
  }
  peers->timeout_ns = static_cast<uint64_t>(std::min(timeout, kLongest) * 1e9);
  return ffi::Error::Success();
}

}  // namespace fused_all_reduce_rms_norm
#endif
