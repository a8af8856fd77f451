"""pyxla.benchmark."""
