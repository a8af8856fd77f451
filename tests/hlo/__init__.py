"""pyxla.hlo: what it reads in the texts of XLA."""
