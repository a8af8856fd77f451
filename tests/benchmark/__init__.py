"""pyxla.benchmark and `devtool bench`."""
