"""Hooks of pytest: what the main blocks of pytorch/xla's tests do."""

import os
import sys


def pytest_collection_finish(session):
    if session.items and "torch_xla" in sys.modules:
        sys.modules["torch_xla"]._XLAC._xla_set_mat_mul_precision(os.environ["OUTSIDE_PRECISION"])
    if "absl.flags" in sys.modules:
        sys.modules["absl.flags"].FLAGS(sys.argv, known_only=True)
