// What pjrt_proxy knows of the PJRT C API: the table of functions and the structs of the few that it looks into.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pjrt {

// The API's head; function pointers follow. Only these fields are read by name.
struct ApiHead {
  size_t struct_size;
  void* extension_start;
  struct {
    size_t struct_size;
    void* extension_start;
    int major, minor;
  } version;
};
using Function = void* (*)(void*);

// An element of the list of extensions; functions follow.
struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
};
// PJRT_Extension_Type_Profiler. The table's size comes first; functions are only added at its end.
constexpr int kProfilerType = 1;
struct ProfilerTable {
  size_t struct_size;
  void* private_data;
  Function error_destroy, error_message, error_get_code, create, destroy, start, stop, collect_data;
};
struct ProfilerExtension {
  Extension head;
  const ProfilerTable* table;
  int64_t context;
};
// PJRT_Extension_Type_Stream.
constexpr int kStreamType = 3;
struct StreamExtension {
  Extension head;
  Function get_stream, wait_stream;
};

// Places of those functions behind the head, which never change: the API only adds functions at the end.
enum Place : size_t {
  kErrorDestroy = 0,
  kErrorMessage = 1,
  kPluginAttributes = 4,
  kEventDestroy = 5,
  kEventAwait = 8,
  kEventOnReady = 9,
  kPlatformName = 12,
  kAddressableDevices = 16,
  kLookupAddressableDevice = 18,
  kCompile = 20,
  kMemoryStats = 34,
  kExecutableDestroy = 40,
  kSerialize = 49,
  kGetExecutable = 51,
  kExecute = 55,
  kDeserialize = 56,
  kToHostBuffer = 70,
  kReadyEvent = 72,
  kCreateView = 93,
};

// Functions whose struct needs more than a larger copy.
struct Special {
  size_t function;
  size_t caller_bytes;   // what the caller's struct holds at least, though it states less; 0: what it states
  size_t nested_offset;  // where a pointer to another struct with a size lies that must be extended too; 0: nowhere
};
inline constexpr Special kSpecial[] = {
    // PJRT_Plugin_Attributes: torch_xla states the offset of the last field (24) instead of the size (32).
    {kPluginAttributes, 32, 0},
    // PJRT_LoadedExecutable_Execute: PJRT_ExecuteOptions* options.
    {kExecute, 0, 24},
};

// The structs of those functions: every version of the API begins them like this.
struct ErrorArgs {
  size_t struct_size;
  void* extension_start;
  void* error;
  const char* message;
  size_t message_size;
};
struct EventArgs {
  size_t struct_size;
  void* extension_start;
  void* event;
  void (*callback)(void* error, void* user);
  void* user;
};
struct ReadyEventArgs {
  size_t struct_size;
  void* extension_start;
  void* buffer;
  void* event;
};
struct ToHostBufferArgs {
  size_t struct_size;
  void* extension_start;
  void* buffer;
  void* host_layout;
  void* destination;
};
struct PlatformNameArgs {
  size_t struct_size;
  void *extension_start, *client;
  const char* name;
  size_t name_size;
};
struct AddressableDevicesArgs {
  size_t struct_size;
  void *extension_start, *client;
  void* const* devices;
  size_t count;
};
struct LookupDeviceArgs {
  size_t struct_size;
  void *extension_start, *client;
  int local_hardware_id;
  void* device;
};
// Words that are not named here say whether the one before is there, or count allocations.
struct MemoryStatsArgs {
  size_t struct_size;
  void *extension_start, *device;
  int64_t used, peak, is_peak_set, allocations[4], limit, is_limit_set;
};
struct GetStreamArgs {
  size_t struct_size;
  void* device;
  intptr_t stream;
};
struct CreateViewArgs {
  size_t struct_size;
  void* extension_start;
  void *client, *pointer;
  const int64_t* dims;
  size_t rank;
  int element_type;
  void *layout, *device;
  void (*on_delete)(void* pointer, void* user);
  void* user;
  intptr_t stream;
};
struct Program {
  size_t struct_size;
  void* extension_start;
  const char* code;
  size_t code_size;
  const char* format;
  size_t format_size;
};
struct CompileArgs {
  size_t struct_size;
  void* extension_start;
  void *client, *program;
  const char* options;
  size_t options_size;
  void* executable;
};
struct GetExecutableArgs {
  size_t struct_size;
  void *extension_start, *loaded, *executable;
};
struct SerializeArgs {
  size_t struct_size;
  void *extension_start, *executable;
  const char* bytes;
  size_t bytes_size;
  void* serialized;
  void (*destroy)(void* serialized);
};
struct DeserializeArgs {
  size_t struct_size;
  void *extension_start, *client;
  const char* bytes;
  size_t bytes_size;
  void* executable;
};
struct ExecuteArgs {
  size_t struct_size;
  void* extension_start;
  void* executable;
  void* options;
  void* argument_lists;
  size_t device_count;
  size_t argument_count;
  void* output_lists;
  void** complete_events;
  void* execute_device;
};

}  // namespace pjrt
