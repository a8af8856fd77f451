// PYXLA_MULTIVERSION compiles a function twice, for any x86-64 and for AVX2; the loader picks one.
//
// So a library runs on every machine and still uses the vector units of a newer one. What the function calls must be
// inlined into it (lambdas and PYXLA_INLINE functions are), or it stays at the baseline.
#pragma once

/** Always inlined, so that it is compiled for each version of its caller. */
#define PYXLA_INLINE inline __attribute__((always_inline))

// By feature: "arch=haswell" would pick by the processor's model, and leave every AMD at the baseline.
// Under AddressSanitizer the choice would run before the sanitizer is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define PYXLA_MULTIVERSION __attribute__((target_clones("avx2", "default")))
#else
/** Before a function: compiled for any x86-64 and for AVX2; what it calls must be inlined into it. */
#define PYXLA_MULTIVERSION
#endif
