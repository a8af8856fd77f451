"""pyxla.trace."""
