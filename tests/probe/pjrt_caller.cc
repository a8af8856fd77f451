// Calls PJRT_Buffer_ToHostBuffer as torch_xla's C++ does, so that the proxy's exception has someone to catch it.
//
// pjrt_caller <proxy> good|bad
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <stdexcept>

int main(int, char** arguments) {
  void* proxy = dlopen(arguments[1], RTLD_NOW);
  const auto get_api = reinterpret_cast<const char* (*)()>(dlsym(proxy, "GetPjrtApi"));
  void* (*const* functions)(void*) = reinterpret_cast<void* (*const*)(void*)>(get_api() + 40);
  int value = 0;
  // A buffer of the probe plugin is its event: 1 ends well.
  void* buffer = reinterpret_cast<void*>(std::strcmp(arguments[2], "good") == 0 ? 1L : 2L);
  struct {
    size_t struct_size;
    void *extension, *buffer, *layout, *destination;
    size_t size;
    void* event;
  } args = {56, nullptr, buffer, nullptr, &value, 4, nullptr};
  try {
    functions[70](&args);
    std::printf("read %d\n", value);
  } catch (const std::runtime_error& error) {
    std::printf("caught %s, read %d\n", error.what(), value);
  }
}
