// A PJRT plugin in front of the vendor's CUDA plugin, for a torch_xla that is older than it.
//
// Every function of the PJRT C API takes one struct, whose first field is its size. A plugin refuses a struct that is
// smaller than the one it knows: torch_xla's are, of two functions today and of others tomorrow. The API only
// ever adds fields at a struct's end, and zero means "not given". So each call is forwarded with its struct copied into
// a larger one, zero behind the caller's bytes, and the caller's bytes are copied back for the results in them.
//
// Two functions do more, because an execution's error is not in what Execute returns but in its results, and torch_xla
// ends the process when it reads such a result:
//   PJRT_LoadedExecutable_Execute keeps the first error of an execution for pyxla.sync() (pyxla_take_error);
//   PJRT_Buffer_ToHostBuffer waits for the buffer, as its caller does next, and throws the error: a RuntimeError in
//   Python. An exception may pass here: from this call up to Python all is C++ with unwind tables.
//
// And one tells XLA what torch_xla forgets. To import a DLPack tensor it asks the plugin for a stream, lets that stream
// wait for the producer's, and then makes a view of the memory without naming the stream, so that XLA reads too early:
//   PJRT_Client_CreateViewOfDeviceBuffer names the stream that this thread asked for last (pjrt_extensions.cc).
//
// And one takes options of our own: flags that torch_xla's XLA may not know, and those that let XLA write down what it
// compiles, at any time and only then:
//   PJRT_Client_Compile appends them to torch_xla's (compile_options.cc). It also keeps graphs in files, as torch_xla's
//   own files cannot be loaded: torch_xla asks for that in a way that no plugin answers (graph_cache.cc).
//
// And two are for torch_xla 2.9, which ends the process if a client calls itself "cuda", exports and imports memory of
// a client "cpu" only, and does not ask for a stream:
//   PJRT_Client_PlatformName answers PYXLA_PLATFORM_NAME, if it is set (pyxla/autoload.py);
//   PJRT_Client_AddressableDevices keeps client and result, so that pyxla can ask for a stream (pyxla_ask_stream), and
//   how much memory of each device is in use, which torch_xla does not say of devices that share a program
//   (pyxla_memory_stats).
//
// The vendor's plugin is the one that PYXLA_PJRT_PLUGIN names; pyxla/pjrt/cuda_plugin.py sets it.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "compile_options.h"
#include "graph_cache.h"
#include "pjrt_extended.h"
#include "pjrt_extensions.h"
#include "pjrt_structs.h"

namespace {

using namespace pjrt;

constexpr size_t kMaxFunctions = 256;

struct Api {
  ApiHead head;
  Function functions[kMaxFunctions];
};

Function vendor_functions[kMaxFunctions];

std::mutex error_mutex;
std::string first_error;

// Takes the text of an error and destroys it.
std::string TakeText(void* error) {
  ErrorArgs args = {sizeof(ErrorArgs), nullptr, error, nullptr, 0};
  vendor_functions[kErrorMessage](&args);
  const std::string text(args.message, args.message_size);
  args = {offsetof(ErrorArgs, message), nullptr, error, nullptr, 0};
  vendor_functions[kErrorDestroy](&args);
  return text;
}

void Keep(void* error, void*) {
  if (error == nullptr) return;
  const std::string text = TakeText(error);
  std::lock_guard<std::mutex> lock(error_mutex);
  if (first_error.empty()) first_error = text;
}

std::string TakeFirstError() {
  std::lock_guard<std::mutex> lock(error_mutex);
  return std::exchange(first_error, {});
}

void DestroyEvent(void* event) {
  EventArgs args = {offsetof(EventArgs, callback), nullptr, event, nullptr, nullptr};
  vendor_functions[kEventDestroy](&args);
}

// Calls the vendor's function with a struct that is large enough for it.
void* Call(size_t function, size_t caller_bytes, size_t nested_offset, void* args) {
  const size_t stated = SizeOf(args);
  const size_t bytes = stated < caller_bytes ? caller_bytes : stated;
  if (bytes >= kRoom) return vendor_functions[function](args);
  Extended extended(args, bytes);
  if (nested_offset != 0) {
    void** nested = reinterpret_cast<void**>(extended.get() + nested_offset);
    void* const caller_nested = *nested;
    if (caller_nested != nullptr && SizeOf(caller_nested) < kRoom) {
      Extended extended_nested(caller_nested, SizeOf(caller_nested));
      *nested = extended_nested.get();
      void* result = vendor_functions[function](extended.get());
      *nested = caller_nested;
      extended_nested.CopyBack();
      extended.CopyBack();
      return result;
    }
  }
  void* result = vendor_functions[function](extended.get());
  extended.CopyBack();
  return result;
}

// Asks for the events of an execution that nobody else wanted, and looks at how each ends.
void* Execute(void* raw, size_t nested_offset) {
  constexpr size_t kMostDevices = 64;
  auto* args = static_cast<ExecuteArgs*>(raw);
  void* own_events[kMostDevices] = {};
  const bool own = args->complete_events == nullptr && args->device_count <= kMostDevices;
  if (own) args->complete_events = own_events;
  void* error = Call(kExecute, 0, nested_offset, args);
  if (error == nullptr && args->complete_events != nullptr) {
    for (size_t i = 0; i < args->device_count; ++i) {
      EventArgs on_ready = {sizeof(EventArgs), nullptr, args->complete_events[i], &Keep, nullptr};
      vendor_functions[kEventOnReady](&on_ready);
      if (own) DestroyEvent(own_events[i]);
    }
  }
  if (own) args->complete_events = nullptr;
  return error;
}

void* CallPlain(size_t function, void* args) { return Call(function, 0, 0, args); }

void* PlatformName(void* raw) {
  void* error = Call(kPlatformName, 0, 0, raw);
  static const char* const name = std::getenv("PYXLA_PLATFORM_NAME");
  if (error == nullptr && name != nullptr) {
    auto* args = static_cast<PlatformNameArgs*>(raw);
    args->name = name;
    args->name_size = std::strlen(name);
  }
  return error;
}

// The client and its array of devices; both live as long as the process.
void* client = nullptr;
void* const* devices = nullptr;
size_t device_count = 0;

void* AddressableDevices(void* raw) {
  void* error = Call(kAddressableDevices, 0, 0, raw);
  if (error == nullptr) {
    const auto* args = static_cast<const AddressableDevicesArgs*>(raw);
    client = args->client;
    devices = args->devices;
    device_count = args->count;
  }
  return error;
}

// Waits until the buffer is there; throws the error of the execution that should have made it.
void RequireReady(void* buffer) {
  ReadyEventArgs ready = {sizeof(ReadyEventArgs), nullptr, buffer, nullptr};
  if (void* error = vendor_functions[kReadyEvent](&ready)) throw std::runtime_error(TakeText(error));
  EventArgs await = {offsetof(EventArgs, callback), nullptr, ready.event, nullptr, nullptr};
  void* error = vendor_functions[kEventAwait](&await);
  DestroyEvent(ready.event);
  if (error != nullptr) {
    TakeFirstError();
    throw std::runtime_error(TakeText(error));
  }
}

template <size_t kFunction>
void* Forward(void* args) {
  constexpr Special special = [] {
    for (const Special& one : kSpecial) {
      if (one.function == kFunction) return one;
    }
    return Special{kFunction, 0, 0};
  }();
  if constexpr (kFunction == kPlatformName) return PlatformName(args);
  if constexpr (kFunction == kAddressableDevices) return AddressableDevices(args);
  if constexpr (kFunction == kCompile) return CompileWithOptions(static_cast<CompileArgs*>(args), &CallPlain);
  if constexpr (kFunction == kExecute) return Execute(args, special.nested_offset);
  if constexpr (kFunction == kToHostBuffer) {
    // Without a destination the call only asks for the size.
    const auto* to_host = static_cast<const ToHostBufferArgs*>(args);
    if (to_host->destination != nullptr) RequireReady(to_host->buffer);
  }
  if constexpr (kFunction == kCreateView) {
    auto* view = static_cast<CreateViewArgs*>(args);
    const intptr_t asked_for = TakeReadyStream();
    if (view->stream == 0) view->stream = asked_for;
  }
  return Call(kFunction, special.caller_bytes, special.nested_offset, args);
}

template <size_t... kFunctions>
void FillForwards(Function* functions, size_t count, std::index_sequence<kFunctions...>) {
  ((functions[kFunctions] = kFunctions < count && vendor_functions[kFunctions] ? &Forward<kFunctions> : nullptr), ...);
}

const Api* MakeApi() {
  const char* path = std::getenv("PYXLA_PJRT_PLUGIN");
  void* plugin = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  using GetApi = const Api* (*)();
  const auto get_api = plugin ? reinterpret_cast<GetApi>(dlsym(plugin, "GetPjrtApi")) : nullptr;
  if (get_api == nullptr) {
    // pyxla looks before it lets torch_xla load this one; by hand there is no other way to say it.
    std::fprintf(stderr, "pjrt_proxy: PYXLA_PJRT_PLUGIN: expected a PJRT plugin, got %s: %s\n", path ? path : "none",
                 path ? dlerror() : "");
    return nullptr;
  }
  const Api* vendor = get_api();
  static Api api = {};
  const size_t known = sizeof(Api) < vendor->head.struct_size ? sizeof(Api) : vendor->head.struct_size;
  const size_t count = (known - sizeof(ApiHead)) / sizeof(Function);
  std::memcpy(&api, vendor, known);
  std::memcpy(vendor_functions, vendor->functions, count * sizeof(Function));
  FillForwards(api.functions, count, std::make_index_sequence<kMaxFunctions>());
  api.head.struct_size = known;
  WrapExtensions(&api.head);
  return &api;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const void* GetPjrtApi() {
  static const Api* const api = MakeApi();
  return api;
}

// Copies the first error of an execution since the last call, cut to `size` with the final zero; false if there is
// none.
extern "C" __attribute__((visibility("default"))) bool pyxla_take_error(char* text, size_t size) {
  const std::string error = TakeFirstError();
  std::snprintf(text, size, "%s", error.c_str());
  return !error.empty();
}

// A stream of the GPU with this number, as CUDA counts it; the client may have others alone. The next view that this
// thread makes of device memory waits for it. False: there is none.
extern "C" __attribute__((visibility("default"))) bool pyxla_ask_stream(int gpu, intptr_t* stream) {
  if (client == nullptr) return false;
  LookupDeviceArgs args = {sizeof(LookupDeviceArgs), nullptr, client, gpu, nullptr};
  if (void* error = Call(kLookupAddressableDevice, 0, 0, &args)) return TakeText(error), false;
  return AskStream(args.device, stream);
}

// What the allocator of a device has counted: bytes in use, their peak and their limit; false: the plugin says nothing.
extern "C" __attribute__((visibility("default"))) bool pyxla_memory_stats(size_t device, int64_t* figures) {
  if (device >= device_count) return false;
  MemoryStatsArgs args = {};
  args.struct_size = sizeof(args);
  args.device = devices[device];
  if (void* error = Call(kMemoryStats, 0, 0, &args)) return TakeText(error), false;
  figures[0] = args.used, figures[1] = args.peak, figures[2] = args.limit;
  return true;
}

// From now on keeps graphs in this folder; "": nothing is kept.
extern "C" __attribute__((visibility("default"))) void pyxla_keep_graphs(const char* folder) { KeepGraphs(folder); }

// How many graphs this process has compiled, and how many it has loaded from files.
extern "C" __attribute__((visibility("default"))) void pyxla_graph_counts(int64_t* counts) {
  const GraphCounts found = CountGraphs();
  counts[0] = found.compiled, counts[1] = found.loaded;
}

// What every compilation of this process gets beside its own options: fields of a CompileOptionsProto.
extern "C" __attribute__((visibility("default"))) void pyxla_set_process_options(const char* bytes, size_t size) {
  SetProcessOptions({bytes, size});
}

// The same for the compilations from now on, which then leave the files of graphs alone; none if size is 0.
extern "C" __attribute__((visibility("default"))) void pyxla_set_compile_options(const char* bytes, size_t size) {
  SetCompileOptions({bytes, size});
}
