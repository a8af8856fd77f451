// Structs of the PJRT C API in the size that the vendor's plugin wants.
#pragma once

#include <cstddef>
#include <cstring>

namespace pjrt {

// Twice the largest struct of API 0.115.
constexpr size_t kRoom = 512;

inline size_t SizeOf(const void* args) { return *static_cast<const size_t*>(args); }

// A copy of a struct with room for the fields that its writer did not know.
class Extended {
 public:
  explicit Extended(void* from, size_t bytes) : from_(from), bytes_(bytes) {
    std::memcpy(room_, from, bytes);
    std::memset(room_ + bytes, 0, kRoom - bytes);
    const size_t size = kRoom;
    std::memcpy(room_, &size, sizeof(size));
  }
  // Results lie behind the size, in the caller's bytes.
  void CopyBack() {
    std::memcpy(static_cast<char*>(from_) + sizeof(size_t), room_ + sizeof(size_t), bytes_ - sizeof(size_t));
  }
  char* get() { return room_; }

 private:
  void* from_;
  size_t bytes_;
  alignas(16) char room_[kRoom];
};

}  // namespace pjrt
