#include "compile_options.h"

#include <mutex>
#include <utility>

namespace pjrt {

namespace {

std::mutex options_mutex;
std::string process_options, extra_options;

}  // namespace

void SetProcessOptions(const std::string& bytes) {
  std::lock_guard<std::mutex> lock(options_mutex);
  process_options = bytes;
}

void SetExtraOptions(const std::string& bytes) {
  std::lock_guard<std::mutex> lock(options_mutex);
  extra_options = bytes;
}

void* CompileWithOptions(CompileArgs* args, CallVendor call) {
  std::string options;
  bool has_extra;
  {
    std::lock_guard<std::mutex> lock(options_mutex);
    options = std::string(args->options, args->options_size) + process_options + extra_options;
    has_extra = !extra_options.empty();
  }
  const char* const caller_options = std::exchange(args->options, options.data());
  const size_t caller_size = std::exchange(args->options_size, options.size());
  void* error = has_extra ? call(kCompile, args) : CompileOrLoad(args, call);
  args->options = caller_options;
  args->options_size = caller_size;
  return error;
}

}  // namespace pjrt
