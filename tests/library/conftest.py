"""A library as a wheel installs it."""

import shutil

import pytest

from pyxla.library import find
from tests.library.test_find import BUILT, use_package


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """simple_add as a wheel installs it: library and manifest, no sources. Returns the library."""
    (tmp_path / "simple_add").mkdir()
    for name in ("libsimple_add.so", "libsimple_add.json"):
        shutil.copy(BUILT / name, tmp_path / "simple_add")
    use_package(monkeypatch, tmp_path)
    monkeypatch.setattr(find, "preloaded_libraries", lambda: ())
    return tmp_path / "simple_add/libsimple_add.so"
