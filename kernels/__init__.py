"""The op folders; installed as `pyxla_kernels`. README.md here is the contract of an op folder."""

# Importing pyxla imports the ops, and these import from the families. So it comes first: no module is half made then.
import pyxla  # noqa: F401
