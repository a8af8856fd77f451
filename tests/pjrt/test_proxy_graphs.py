"""pjrt_proxy compiles: with our options, and graphs that it keeps in files."""

import ctypes
import os

import pytest

from tests.pjrt.proxy import Proxy


def test_compilation_takes_our_options_behind_the_callers(proxy):
    """XLA's dump can be switched on at any time; the caller's struct is unchanged."""

    def compile_with(options: bytes) -> int:
        address = ctypes.cast(ctypes.c_char_p(options), ctypes.c_void_p).value
        result, words = proxy.call(20, stated=56, words=[1, 2, address, len(options), 0])
        assert result is None and words[:4] == [1, 2, address, len(options)]
        return words[4]

    assert compile_with(b"abc") == sum(b"abc")
    proxy.library.pyxla_set_compile_options(b"d\0e", ctypes.c_size_t(3))
    assert (compile_with(b"abc"), compile_with(b"")) == (sum(b"abcde"), sum(b"de"))
    proxy.library.pyxla_set_compile_options(b"", ctypes.c_size_t(0))
    assert compile_with(b"abc") == sum(b"abc")


class Compiler:
    """Compiles programs through the proxy; the probe's graph is the sum of the options."""

    def __init__(self, proxy: Proxy):
        self._proxy = proxy
        self._before = self._counts()

    def __call__(self, program: bytes, options: bytes) -> int:
        texts = [ctypes.create_string_buffer(text, len(text)) for text in (program, b"mlir", options)]
        code, form, given = map(ctypes.addressof, texts)
        struct = (ctypes.c_uint64 * 6)(48, 0, code, len(program), form, 4)
        words = [1, ctypes.addressof(struct), given, len(options), 0]
        result, words = self._proxy.call(20, stated=56, words=words)
        assert result is None
        return words[4]

    def news(self) -> tuple[int, int]:
        """How many graphs were compiled and loaded since the last time."""
        before, self._before = self._before, self._counts()
        return tuple(now - then for now, then in zip(self._before, before, strict=True))

    def _counts(self) -> list[int]:
        counts = (ctypes.c_int64 * 2)()
        self._proxy.library.pyxla_graph_counts(counts)
        return list(counts)


@pytest.fixture
def folder(proxy, tmp_path):
    proxy.library.pyxla_keep_graphs(os.fsencode(tmp_path))
    yield tmp_path
    proxy.library.pyxla_keep_graphs(b"")


def test_options_of_the_process_are_part_of_a_graphs_key(proxy, folder):
    """A graph that was kept without them is not loaded; an inspection has them too."""
    compile_graph = Compiler(proxy)
    compile_graph(b"program", b"abc")
    proxy.library.pyxla_set_process_options(b"e", ctypes.c_size_t(1))
    try:
        assert [compile_graph(b"program", b"abc") for _ in range(2)] == [sum(b"abce")] * 2
        assert compile_graph.news() == (2, 1)
        proxy.library.pyxla_set_compile_options(b"d", ctypes.c_size_t(1))
        assert compile_graph(b"program", b"abc") == sum(b"abced")
    finally:
        proxy.library.pyxla_set_compile_options(b"", ctypes.c_size_t(0))
        proxy.library.pyxla_set_process_options(b"", ctypes.c_size_t(0))
    assert compile_graph(b"program", b"abc") == sum(b"abc")
    assert compile_graph.news() == (0, 1)


def test_graphs_are_kept_only_in_a_folder(proxy):
    compile_graph = Compiler(proxy)
    assert [compile_graph(b"program", b"abc") for _ in range(2)] == [sum(b"abc")] * 2
    assert compile_graph.news() == (2, 0)


def test_kept_graph_is_loaded(proxy, plugin, folder, monkeypatch):
    """Only if program, options and flags are the same."""
    compile_graph = Compiler(proxy)
    assert compile_graph(b"program", b"abc") == compile_graph(b"program", b"abc") == sum(b"abc")
    assert compile_graph.news() == (1, 1)
    # The same bytes, cut at another place.
    assert (compile_graph(b"programa", b"bc"), compile_graph(b"other", b"abc")) == (sum(b"bc"), sum(b"abc"))
    monkeypatch.setenv("XLA_FLAGS", "--another")
    compile_graph(b"program", b"abc")
    assert compile_graph.news() == (3, 0)
    compile_graph(b"program", b"abc")
    assert compile_graph.news() == (0, 1)
    assert len(list(folder.iterdir())) == 4
    assert ctypes.CDLL(str(plugin)).probe_executables_alive() == 0


def test_graph_with_our_options_is_compiled_and_not_kept(proxy, folder):
    """As for an inspection, which reads what XLA writes while it compiles."""
    compile_graph = Compiler(proxy)
    compile_graph(b"program", b"abc")
    proxy.library.pyxla_set_compile_options(b"d", ctypes.c_size_t(1))
    assert compile_graph(b"program", b"abc") == sum(b"abcd")
    proxy.library.pyxla_set_compile_options(b"", ctypes.c_size_t(0))
    assert compile_graph.news() == (1, 0)
    assert len(list(folder.iterdir())) == 1


# What is in a file: the size of the key and the key, the size of the graph and the graph.
DAMAGE = {
    "empty": lambda text: b"",
    "cut": lambda text: text[:-1],
    "cut in the key": lambda text: text[:11],
    "of another program": lambda text: text.replace(b"program", b"another"),
    "not to be loaded": lambda text: text[:-16] + (1).to_bytes(8, "little") + b"x",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file_is_replaced(proxy, plugin, folder, damage):
    compile_graph = Compiler(proxy)
    compile_graph(b"program", b"abc")
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    assert compile_graph(b"program", b"abc") == sum(b"abc")
    assert compile_graph.news() == (2, 0)
    assert path.read_bytes() == whole
    assert ctypes.CDLL(str(plugin)).probe_errors_alive() == 0


def test_file_that_cannot_be_read(proxy, folder):
    """Its read fails after it was opened, as on a disk that fails."""
    compile_graph = Compiler(proxy)
    compile_graph(b"program", b"abc")
    (path,) = folder.iterdir()
    path.unlink()
    path.mkdir()
    assert compile_graph(b"program", b"abc") == sum(b"abc")
    assert compile_graph.news() == (2, 0)


def test_folder_that_is_gone_costs_the_graphs_alone(proxy, folder):
    folder.rmdir()
    compile_graph = Compiler(proxy)
    assert [compile_graph(b"program", b"abc") for _ in range(2)] == [sum(b"abc")] * 2
    assert compile_graph.news() == (2, 0)
    folder.mkdir()
