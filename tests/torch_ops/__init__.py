"""pyxla.torch_ops, and memory shared with CuPy and torch."""
