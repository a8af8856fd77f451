"""Hooks of pytest: vLLM's tests compute what they compare with on the host, not by XLA."""

import importlib
import os
import sys

if module := os.environ.get("OUTSIDE_IMPORT"):
    importlib.import_module(module)


def pytest_collection_finish(session):
    if session.items and "tests.conftest" in sys.modules:
        sys.modules["tests.conftest"].HfRunner.get_default_device = lambda self: "cpu"
