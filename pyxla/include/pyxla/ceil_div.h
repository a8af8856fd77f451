// Division rounded up, for host and device code.
#pragma once

#include <cstdint>

namespace pyxla {

/** a / b, rounded up; both are positive. */
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace pyxla
