"""pyxla.artifact: saving graphs and loading them elsewhere."""
