"""pyxla.library: from a library to registered handlers."""
