// The floating dtypes that most ops take, by a name that host and device code share: no XLA header.
#pragma once

namespace pyxla {

/** float32, bfloat16 or float16. */
enum class FloatType { kFloat32, kBFloat16, kFloat16 };

}  // namespace pyxla
