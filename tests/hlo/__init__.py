"""pyxla.hlo: reading XLA's texts."""
