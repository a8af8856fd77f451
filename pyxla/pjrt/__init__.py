"""XLA's runtime: the CUDA plugin and the C structs of PJRT and of FFI calls."""
