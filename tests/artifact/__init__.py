"""pyxla.artifact: graphs that are saved and loaded elsewhere."""
