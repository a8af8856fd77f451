"""pyxla.pjrt, the proxy of the CUDA plugin and pyxla_torch_backend."""
