"""The op folders."""

import pyxla  # noqa: F401 - first, as it imports the ops
