"""pyxla.torch_xla_patches: what torch_xla does without them."""
