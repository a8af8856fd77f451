// The extensions of the vendor's plugin that torch_xla does not get as they are.
#pragma once

#include <cstdint>

#include "pjrt_structs.h"

namespace pjrt {

// Puts our own before the vendor's in the list; the first one of a type is what torch_xla finds.
void WrapExtensions(ApiHead* api);

// The stream that this thread asked the plugin for last; 0 until it asks for another.
intptr_t TakeReadyStream();

}  // namespace pjrt
