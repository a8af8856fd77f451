"""The op folders; installed as `pyxla_kernels`. README.md here is the contract of an op folder."""

# pyxla comes first: importing it imports the ops, which import from the families, so no module is left half imported.
import pyxla  # noqa: F401
