"""pyxla.inspection: what XLA compiled and ran."""
