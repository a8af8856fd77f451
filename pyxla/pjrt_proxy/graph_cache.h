// Keeps what the vendor's plugin compiled in files, for the next process.
#pragma once

#include <cstdint>
#include <string>

#include "pjrt_structs.h"

namespace pjrt {

// Calls a function of the vendor's plugin; null, or its error.
using CallVendor = void* (*)(size_t function, void* args);

// The folder of the files, which must exist; empty: nothing is kept.
void KeepGraphs(const std::string& folder);

// As PJRT_Client_Compile: loads the kept graph of the same program and options, or compiles it and keeps it.
void* CompileOrLoad(CompileArgs* args, CallVendor call);

// How many graphs this process has compiled and loaded.
struct GraphCounts {
  int64_t compiled, loaded;
};
GraphCounts CountGraphs();

}  // namespace pjrt
