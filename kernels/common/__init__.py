# Importing pyxla imports the ops, and these import from here: first of all, so that they find no module half made.
import pyxla  # noqa: F401
