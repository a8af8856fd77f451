"""devtool.building.preload: what a process of tests or benches preloads."""

from pathlib import Path

import pytest

from devtool.building.preload import preload
from devtool.errors import DevtoolError


def test_preload_keeps_what_others_preload(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so:/old/libtiny.so")
    assert preload("test", [Path("/new/libtiny.so")], None) == "/new/libtiny.so /usr/lib/libjemalloc.so"


def test_preload_cannot_name_a_path_with_a_space():
    with pytest.raises(DevtoolError, match="test: checkout: expected a path that LD_PRELOAD can name, got a space"):
        preload("test", [Path("/my checkout/libtiny.so")], None)


def test_sanitizer_comes_before_the_libraries():
    sanitizer, library = preload("test", [Path("/new/libtiny.so")], "address").split()[:2]
    assert Path(sanitizer).name == "libasan.so" and Path(sanitizer).exists()
    assert library == "/new/libtiny.so"


def test_sanitizer_that_the_compiler_lacks(monkeypatch, tmp_path):
    other = tmp_path / "clang++"
    other.write_text("#!/bin/sh\necho libasan.so\n")
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    with pytest.raises(
        DevtoolError, match=r"test: --sanitize: expected g\+\+ with libasan.so, got .*clang\+\+ without"
    ):
        preload("test", [Path("/new/libtiny.so")], "address")
