// What pjrt_proxy adds to the options of each compilation: fields of a CompileOptionsProto. XLA merges bytes that
// follow a message's into it.
#pragma once

#include <string>

#include "graph_cache.h"
#include "pjrt_structs.h"

namespace pjrt {

// Of this process: they are part of what a kept graph was compiled from.
void SetProcessOptions(const std::string& bytes);

// Of the compilations from now on; these are for what they write down beside the graph, so no graph is loaded from a
// file or kept. Empty: no such options.
void SetCompileOptions(const std::string& bytes);

// As PJRT_Client_Compile, with these options after the caller's.
void* CompileWithOptions(CompileArgs* args, CallVendor call);

}  // namespace pjrt
