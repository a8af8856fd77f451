"""pyxla.torch_ops, and memory that torch_xla shares with others."""
