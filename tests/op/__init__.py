"""pyxla.op: schemas and the checks of arguments."""
