"""pyxla.nn: layers on the ops."""
