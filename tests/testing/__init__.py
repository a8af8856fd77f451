"""pyxla.testing: the comparison of numbers and direct calls of handlers."""
