// c10::cuda::set_device(signed char), which torch_xla 2.8.1 calls and torch 2.8.0 has with a second argument only.
// pyxla_torch_backend loads this before torch_xla. torch's own other functions stay what they are.
#include <dlfcn.h>

#include <stdexcept>

namespace c10::cuda {

__attribute__((visibility("default"))) void set_device(signed char device) {
  using SetDevice = void (*)(signed char device, bool force);
  static const auto set_device = [] {
    void* library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? reinterpret_cast<SetDevice>(dlsym(library, "_ZN3c104cuda10set_deviceEab")) : nullptr;
  }();
  if (set_device == nullptr) throw std::runtime_error("set_device: expected torch 2.8.0 with CUDA, got another torch");
  set_device(device, false);
}

}  // namespace c10::cuda
