// Streams: see PJRT_Client_CreateViewOfDeviceBuffer in pjrt_proxy.cc.
//
// Profiler: torch_xla takes a table of ten words, the plugins of API 0.115 have one of thirteen, and torch_xla
// ends the process when a profile starts. It is shown the ten, whose places have not changed.
#include "pjrt_extensions.h"

#include <utility>

namespace pjrt {

namespace {

// A copy of the vendor's extension, put before the list; null if the vendor has none.
template <typename T>
T* Wrap(ApiHead* api, int type) {
  auto* const first = static_cast<Extension*>(api->extension_start);
  Extension* found = first;
  while (found != nullptr && found->type != type) found = found->next;
  if (found == nullptr || found->struct_size < sizeof(T)) return nullptr;
  static T own = *reinterpret_cast<T*>(found);
  own.head.next = first;
  api->extension_start = &own;
  return &own;
}

thread_local intptr_t ready_stream = 0;
Function vendor_get_stream = nullptr;

void* GetStream(void* args) {
  void* error = vendor_get_stream(args);
  if (error == nullptr) ready_stream = static_cast<GetStreamArgs*>(args)->stream;
  return error;
}

void WrapStreams(ApiHead* api) {
  if (auto* own = Wrap<StreamExtension>(api, kStreamType)) {
    vendor_get_stream = std::exchange(own->get_stream, &GetStream);
  }
}

void WrapProfiler(ApiHead* api) {
  auto* own = Wrap<ProfilerExtension>(api, kProfilerType);
  if (own == nullptr || own->table == nullptr || own->table->struct_size <= sizeof(ProfilerTable)) return;
  static ProfilerTable table = *own->table;
  table.struct_size = sizeof(ProfilerTable);
  own->table = &table;
}

}  // namespace

bool AskStream(void* device, intptr_t* stream) {
  if (vendor_get_stream == nullptr) return false;
  GetStreamArgs args = {sizeof(GetStreamArgs), device, 0};
  if (GetStream(&args) != nullptr) return false;
  *stream = args.stream;
  return true;
}

intptr_t TakeReadyStream() { return std::exchange(ready_stream, 0); }

void WrapExtensions(ApiHead* api) {
  WrapStreams(api);
  WrapProfiler(api);
}

}  // namespace pjrt
