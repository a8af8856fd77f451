"""devtool.building.preload: what a process of tests or benches preloads."""

import tempfile
from pathlib import Path

import pytest

from devtool.building.preload import preloading
from devtool.errors import DevtoolError


def test_preload_keeps_what_others_preload(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so:/old/libtiny.so")
    with preloading([Path("/new/libtiny.so")]) as value:
        assert value == "/new/libtiny.so /usr/lib/libjemalloc.so"


@pytest.mark.parametrize("temporary", ["tmp", "my tmp"])
def test_library_that_ld_preload_cannot_name(tmp_path, monkeypatch, temporary):
    """A space or a colon would end its path. The manifest lies beside the library by this name, too."""
    (tmp_path / temporary).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / temporary))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    folder = tmp_path / "mein Projekt: ä"
    folder.mkdir()
    for name in ("libone.so", "libone.json", "libtwo.so"):
        (folder / name).write_text(name)
    with preloading([folder / "libone.so", folder / "libtwo.so", Path("/new/libtiny.so")]) as value:
        one, two, tiny = value.split(" ")
        assert (Path(one).read_text(), Path(two).read_text(), tiny) == ("libone.so", "libtwo.so", "/new/libtiny.so")
        assert Path(one).with_suffix(".json").read_text() == "libone.json" and ":" not in value
    assert not Path(one).parent.exists() and (folder / "libone.so").exists()


def test_sanitizer_comes_before_the_libraries():
    with preloading([Path("/new/libtiny.so")], "address") as value:
        sanitizer, library = value.split()[:2]
    assert Path(sanitizer).name == "libasan.so" and Path(sanitizer).exists()
    assert library == "/new/libtiny.so"


def test_sanitizer_that_the_compiler_lacks(monkeypatch, tmp_path):
    other = tmp_path / "clang++"
    other.write_text("#!/bin/sh\necho libasan.so\n")
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    refused = pytest.raises(
        DevtoolError, match=r"test: --sanitize: expected g\+\+ with libasan.so, got .*clang\+\+ without"
    )
    with refused, preloading([Path("/new/libtiny.so")], "address"):
        pass
