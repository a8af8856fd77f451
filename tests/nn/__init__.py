"""pyxla.nn: layers that call the ops."""
