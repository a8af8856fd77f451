// A file for each graph. Its name is a hash of all that decides what the plugin compiles: the program, the options and
// XLA_FLAGS; the folder is for one plugin and one kind of GPU. The file begins with these bytes, so that a graph with
// the same hash is not taken for another one.
//
// A file that cannot be written, read or loaded is as one that is not there: the graph is compiled.
#include "graph_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <iterator>
#include <mutex>
#include <optional>
#include <string_view>

namespace pjrt {

namespace {

std::mutex folder_mutex;
std::string folder;
std::atomic<int64_t> compiled = 0, loaded = 0;

std::string Folder() {
  std::lock_guard<std::mutex> lock(folder_mutex);
  return folder;
}

void Append(std::string* text, std::string_view part) {
  const uint64_t size = part.size();
  text->append(reinterpret_cast<const char*>(&size), sizeof(size));
  text->append(part);
}

// Takes a part that Append wrote off the front of a text.
std::optional<std::string_view> TakePart(std::string_view* text) {
  uint64_t size;
  if (text->size() < sizeof(size)) return std::nullopt;
  text->copy(reinterpret_cast<char*>(&size), sizeof(size));
  text->remove_prefix(sizeof(size));
  if (text->size() < size) return std::nullopt;
  const std::string_view part = text->substr(0, size);
  text->remove_prefix(size);
  return part;
}

std::string KeyOf(const CompileArgs& args) {
  const auto* program = static_cast<const Program*>(args.program);
  const char* flags = std::getenv("XLA_FLAGS");
  std::string key;
  Append(&key, flags ? flags : "");
  Append(&key, {program->format, program->format_size});
  Append(&key, {args.options, args.options_size});
  Append(&key, {program->code, program->code_size});
  return key;
}

std::filesystem::path PathOf(const std::string& key) {
  char name[17];
  std::snprintf(name, sizeof(name), "%016zx", std::hash<std::string_view>()(key));
  return std::filesystem::path(Folder()) / name;
}

// The text of a file, with the graph in it; an empty graph if the file is not there, cut short or of another key.
struct Kept {
  std::string text;
  std::string_view graph;
};
Kept Read(const std::filesystem::path& path, const std::string& key) {
  Kept kept;
  std::ifstream file(path, std::ios::binary);
  try {
    kept.text.assign(std::istreambuf_iterator<char>(file), {});
  } catch (const std::ios_base::failure&) {
    // A read failed: the iterator reads past the stream, which would only note it.
    kept.text.clear();
  }
  std::string_view rest = kept.text;
  if (TakePart(&rest) == key) kept.graph = TakePart(&rest).value_or("");
  return kept;
}

// Another process may read the file, or write it, at any time: it gets its name when it is whole.
void Write(const std::filesystem::path& path, const std::string& key, std::string_view graph) {
  std::string text;
  Append(&text, key);
  Append(&text, graph);
  const std::filesystem::path temporary = path.string() + "." + std::to_string(getpid());
  std::error_code error;
  {
    std::ofstream file(temporary, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.close();
    if (file) std::filesystem::rename(temporary, path, error);
    if (file && !error) return;
  }
  std::filesystem::remove(temporary, error);
}

bool Succeeds(CallVendor call, size_t function, void* args) {
  void* error = call(function, args);
  if (error == nullptr) return true;
  ErrorArgs destroy = {offsetof(ErrorArgs, message), nullptr, error, nullptr, 0};
  call(kErrorDestroy, &destroy);
  return false;
}

void Keep(const CompileArgs& args, CallVendor call, const std::filesystem::path& path, const std::string& key) {
  GetExecutableArgs get = {sizeof(GetExecutableArgs), nullptr, args.executable, nullptr};
  if (!Succeeds(call, kGetExecutable, &get)) return;
  SerializeArgs serialize = {sizeof(SerializeArgs), nullptr, get.executable, nullptr, 0, nullptr, nullptr};
  if (Succeeds(call, kSerialize, &serialize)) {
    Write(path, key, {serialize.bytes, serialize.bytes_size});
    serialize.destroy(serialize.serialized);
  }
  EventArgs destroy = {offsetof(EventArgs, callback), nullptr, get.executable, nullptr, nullptr};
  Succeeds(call, kExecutableDestroy, &destroy);
}

}  // namespace

void KeepGraphs(const std::string& wanted) {
  std::lock_guard<std::mutex> lock(folder_mutex);
  folder = wanted;
}

void* CompileOrLoad(CompileArgs* args, CallVendor call) {
  if (Folder().empty()) {
    ++compiled;
    return call(kCompile, args);
  }
  const std::string key = KeyOf(*args);
  const std::filesystem::path path = PathOf(key);
  const Kept kept = Read(path, key);
  if (!kept.graph.empty()) {
    DeserializeArgs load = {sizeof(DeserializeArgs), nullptr,           args->client,
                            kept.graph.data(),       kept.graph.size(), nullptr};
    if (Succeeds(call, kDeserialize, &load)) {
      ++loaded;
      args->executable = load.executable;
      return nullptr;
    }
  }
  ++compiled;
  void* error = call(kCompile, args);
  if (error == nullptr) Keep(*args, call, path, key);
  return error;
}

GraphCounts CountGraphs() { return {compiled, loaded}; }

}  // namespace pjrt
