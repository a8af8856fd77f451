"""pyxla.trace and `devtool trace`."""
