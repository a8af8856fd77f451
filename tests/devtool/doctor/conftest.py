"""The environment in which the checks of devtool doctor are tested."""

import pytest


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The environment of a user who has set nothing, without XLA_FLAGS, which pytest's plugin sets."""
    for name in ("LD_PRELOAD", "XLA_FLAGS", "PYXLA_PJRT_PLUGIN", "CXX", "CUDACXX", "PYXLA_NIX_SHELL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch
