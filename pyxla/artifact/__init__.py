"""An artifact: a compiled graph that is saved with its libraries, and loaded elsewhere."""
