#include "compile_options.h"

#include <mutex>
#include <utility>

namespace pjrt {

namespace {

std::mutex options_mutex;
std::string process_options, compile_options;

}  // namespace

void SetProcessOptions(const std::string& bytes) {
  std::lock_guard<std::mutex> lock(options_mutex);
  process_options = bytes;
}

void SetCompileOptions(const std::string& bytes) {
  std::lock_guard<std::mutex> lock(options_mutex);
  compile_options = bytes;
}

void* CompileWithOptions(CompileArgs* args, CallVendor call) {
  std::string options;
  bool writes_down;
  {
    std::lock_guard<std::mutex> lock(options_mutex);
    options = std::string(args->options, args->options_size) + process_options + compile_options;
    writes_down = !compile_options.empty();
  }
  const char* const caller_options = std::exchange(args->options, options.data());
  const size_t caller_size = std::exchange(args->options_size, options.size());
  void* error = writes_down ? call(kCompile, args) : CompileOrLoad(args, call);
  args->options = caller_options;
  args->options_size = caller_size;
  return error;
}

}  // namespace pjrt
