// A PJRT plugin of a few functions that is as strict about struct sizes as XLA's CUDA plugin, for tests of pjrt_proxy.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

// What a call saw, for the test to read: bytes behind those that the caller wrote must be zero.
struct Args {
  size_t struct_size;
  void* extension;
  int64_t words[14];
};

void* const kRefused = reinterpret_cast<void*>(1);

// Wants 10 words; adds up the first 4, says in the fifth whether the rest is zero.
void* Sum(void* raw) {
  auto* args = static_cast<Args*>(raw);
  if (args->struct_size < offsetof(Args, words) + 10 * sizeof(int64_t)) return kRefused;
  int64_t sum = 0, rest = 0;
  for (int i = 0; i < 4; ++i) sum += args->words[i];
  for (int i = 5; i < 14; ++i) rest |= args->words[i];
  args->words[3] = sum;
  args->words[4] = rest == 0;
  return nullptr;
}

// As PJRT_Plugin_Attributes: two results, the second behind the size that torch_xla states.
void* Attributes(void* raw) {
  auto* args = static_cast<Args*>(raw);
  if (args->struct_size < 32) return kRefused;
  args->words[0] = 11;
  args->words[1] = 22;
  return nullptr;
}

// An error, and an event that ends with one: the address of its text. An event without one is null + 1.
const char kBad[] = "INTERNAL: probe: launch: expected cudaSuccess, got another";
void* const kFine = reinterpret_cast<void*>(1);
int errors_alive = 0, events_alive = 0;

void* NewError() {
  ++errors_alive;
  return const_cast<char*>(kBad);
}

void* ErrorDestroy(void* raw) {
  if (static_cast<Args*>(raw)->words[0] != 0) --errors_alive;
  return nullptr;
}

void* ErrorMessage(void* raw) {
  auto* args = static_cast<Args*>(raw);
  args->words[1] = args->words[0];
  args->words[2] = sizeof(kBad) - 1;
  return nullptr;
}

void* EventDestroy(void*) {
  --events_alive;
  return nullptr;
}

void* EventAwait(void* raw) {
  return reinterpret_cast<void*>(static_cast<Args*>(raw)->words[0]) == kFine ? nullptr : NewError();
}

void* EventOnReady(void* raw) {
  auto* args = static_cast<Args*>(raw);
  auto* callback = reinterpret_cast<void (*)(void*, void*)>(args->words[1]);
  callback(EventAwait(raw), reinterpret_cast<void*>(args->words[2]));
  return nullptr;
}

// As PJRT_LoadedExecutable_Execute: options of 88 bytes at byte 24; what is written to them must come back. The
// executable, word 0, is 13 if the execution is to fail; the events come back at byte 64.
void* Execute(void* raw) {
  auto* args = static_cast<Args*>(raw);
  auto* options = reinterpret_cast<Args*>(args->words[1]);
  if (args->struct_size < 80 || options == nullptr || options->struct_size < 88) return kRefused;
  options->words[2] = options->words[0] + (options->words[8] == 0 ? 0 : 1000);
  auto** events = reinterpret_cast<void**>(args->words[6]);
  for (int64_t i = 0; events != nullptr && i < args->words[3]; ++i) {
    ++events_alive;
    events[i] = args->words[0] == 13 ? const_cast<char*>(kBad) : kFine;
  }
  args->words[0] = 33;
  return nullptr;
}

// As PJRT_Client_Compile: the executable, at byte 48, is what the options' bytes add up to.
void* Compile(void* raw) {
  auto* args = static_cast<Args*>(raw);
  if (args->struct_size < 56) return kRefused;
  const auto* options = reinterpret_cast<const unsigned char*>(args->words[2]);
  args->words[4] = 0;
  for (int64_t i = 0; i < args->words[3]; ++i) args->words[4] += options[i];
  return nullptr;
}

// As PJRT_LoadedExecutable_GetExecutable, PJRT_Executable_Serialize, PJRT_Executable_Destroy and
// PJRT_Executable_DeserializeAndLoad: an executable is the number that Compile returned, and its bytes are the
// number's.
int executables_alive = 0;
void* GetExecutable(void* raw) {
  auto* args = static_cast<Args*>(raw);
  ++executables_alive;
  args->words[1] = args->words[0];
  return nullptr;
}
void* Serialize(void* raw) {
  auto* args = static_cast<Args*>(raw);
  auto* number = new int64_t(args->words[0]);
  ++executables_alive;
  args->words[1] = args->words[3] = reinterpret_cast<int64_t>(number);
  args->words[2] = sizeof(*number);
  void (*destroy)(int64_t*) = [](int64_t* made) {
    --executables_alive;
    delete made;
  };
  args->words[4] = reinterpret_cast<int64_t>(destroy);
  return nullptr;
}
void* ExecutableDestroy(void*) {
  --executables_alive;
  return nullptr;
}
void* Deserialize(void* raw) {
  auto* args = static_cast<Args*>(raw);
  if (args->struct_size < 64) return kRefused;
  if (args->words[2] != sizeof(int64_t)) return NewError();
  std::memcpy(&args->words[3], reinterpret_cast<const void*>(args->words[1]), sizeof(int64_t));
  return nullptr;
}

// As PJRT_Buffer_ReadyEvent: a buffer is its event.
void* ReadyEvent(void* raw) {
  auto* args = static_cast<Args*>(raw);
  ++events_alive;
  args->words[1] = args->words[0];
  return nullptr;
}

// As PJRT_Buffer_ToHostBuffer.
void* ToHostBuffer(void* raw) {
  auto* args = static_cast<Args*>(raw);
  if (args->words[2] != 0) *reinterpret_cast<int*>(args->words[2]) = 42;
  args->words[3] = 4;
  return nullptr;
}

// As PJRT_Client_AddressableDevices: two devices, of which the second does not count its memory.
int64_t memory[] = {100, -1};
void* device_list[] = {&memory[0], &memory[1]};
void* AddressableDevices(void* raw) {
  auto* args = static_cast<Args*>(raw);
  args->words[1] = reinterpret_cast<int64_t>(device_list);
  args->words[2] = 2;
  return nullptr;
}

// As PJRT_Client_LookupAddressableDevice: of client 77, the devices are GPUs 5 and 6.
void* LookupAddressableDevice(void* raw) {
  auto* args = static_cast<Args*>(raw);
  const int gpu = static_cast<int>(args->words[1]);
  if (args->words[0] != 77 || gpu < 5 || gpu > 6) return NewError();
  args->words[2] = reinterpret_cast<int64_t>(device_list[gpu - 5]);
  return nullptr;
}

// As PJRT_Device_MemoryStats of API 0.115: the figures lie between words that say whether they are there.
void* MemoryStats(void* raw) {
  struct {
    size_t struct_size;
    void* extension;
    int64_t* device;
    int64_t words[21];
  }* args;
  args = static_cast<decltype(args)>(raw);
  if (args->struct_size < sizeof(*args)) return kRefused;
  if (*args->device < 0) return NewError();
  for (int i = 0; i < 9; ++i) args->words[i] = *args->device + i;
  return nullptr;
}

// As the extension for streams: the device is the stream's number; a device 13 has none.
struct StreamArgs {
  size_t struct_size;
  int64_t device, stream;
};
void* GetStream(void* raw) {
  auto* args = static_cast<StreamArgs*>(raw);
  if (args->device == 13) return kRefused;
  args->stream = args->device;
  return nullptr;
}
// As PJRT_Client_CreateViewOfDeviceBuffer: the buffer, at byte 96, is the stream that the caller named.
void* CreateView(void* raw) {
  auto* args = static_cast<Args*>(raw);
  if (args->struct_size < 112) return kRefused;
  args->words[10] = args->words[9];
  return nullptr;
}

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
  void* (*functions[2])(void*);
};
// As the extension of a profiler of API 0.115: three places behind those that torch_xla knows. What it has collected is
// the bytes of an XSpace with one empty plane, "probe".
struct CollectArgs {
  size_t struct_size;
  void* profiler;
  const char* buffer;
  size_t buffer_size;
};
const char kSpace[] = "\x0a\x07\x12\x05probe";
void* CreateProfiler(void* raw) {
  static_cast<Args*>(raw)->words[1] = 1;
  return nullptr;
}
void* Nothing(void*) { return nullptr; }
void* CollectData(void* raw) {
  auto* args = static_cast<CollectArgs*>(raw);
  args->buffer = kSpace;
  args->buffer_size = sizeof(kSpace) - 1;
  return nullptr;
}
struct ProfilerTable {
  size_t struct_size;
  void* words[12];
} profiler_table = {sizeof(ProfilerTable), {}};
struct ProfilerExtension {
  size_t struct_size;
  int type;
  void* next;
  ProfilerTable* table;
  int64_t context;
} profiler = {sizeof(ProfilerExtension), 1, nullptr, &profiler_table, -1};

Extension streams = {sizeof(Extension), 3, reinterpret_cast<Extension*>(&profiler), {GetStream, nullptr}};
Extension custom_calls = {sizeof(Extension), 0, &streams, {nullptr, nullptr}};

struct Api {
  size_t struct_size;
  Extension* extension;
  struct {
    size_t struct_size;
    void* extension;
    int major, minor;
  } version;
  void* (*functions[96])(void*);
};

}  // namespace

extern "C" const void* GetPjrtApi() {
  static Api api = {sizeof(Api), &custom_calls, {24, nullptr, 0, 115}, {}};
  api.functions[0] = ErrorDestroy;
  api.functions[1] = ErrorMessage;
  api.functions[4] = Attributes;
  api.functions[5] = EventDestroy;
  api.functions[8] = EventAwait;
  api.functions[9] = EventOnReady;
  api.functions[10] = Sum;
  api.functions[16] = AddressableDevices;
  api.functions[18] = LookupAddressableDevice;
  api.functions[20] = Compile;
  api.functions[34] = MemoryStats;
  api.functions[40] = ExecutableDestroy;
  api.functions[49] = Serialize;
  api.functions[51] = GetExecutable;
  api.functions[55] = Execute;
  api.functions[56] = Deserialize;
  api.functions[70] = ToHostBuffer;
  api.functions[72] = ReadyEvent;
  api.functions[79] = Sum;
  api.functions[93] = CreateView;
  using Function = void* (*)(void*);
  constexpr Function functions[] = {Nothing, Nothing, Nothing, CreateProfiler, Nothing, Nothing, Nothing, CollectData};
  for (int i = 0; i < 8; ++i) profiler_table.words[1 + i] = reinterpret_cast<void*>(functions[i]);
  return &api;
}

// For the test: nothing that the proxy took may be left.
extern "C" int probe_errors_alive() { return errors_alive; }
extern "C" int probe_events_alive() { return events_alive; }
extern "C" int probe_executables_alive() { return executables_alive; }
