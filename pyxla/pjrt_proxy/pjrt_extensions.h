// The extensions of the vendor's plugin that torch_xla does not get as they are.
#pragma once

#include <cstdint>

#include "pjrt_structs.h"

namespace pjrt {

// Puts our own before the vendor's in the list; the first one of a type is what torch_xla finds.
void WrapExtensions(ApiHead* api);

// Asks the vendor's plugin for a stream of a device and keeps it for TakeReadyStream; false: there is none.
bool AskStream(void* device, intptr_t* stream);

// The stream that this thread asked the plugin for last; 0 until it asks for another.
intptr_t TakeReadyStream();

}  // namespace pjrt
