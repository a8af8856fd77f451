"""pjrt_proxy: every call reaches the vendor's plugin with a large enough struct, and its results come back."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading

import pytest

from tests.conftest import ROOT

PROXY = ROOT / "build/lib/pyxla_pjrt_proxy.so"
HEAD, POINTER = 40, 8


class Proxy:
    """The proxy's function table."""

    def __init__(self, library: ctypes.CDLL):
        library.GetPjrtApi.restype = ctypes.c_void_p
        library.pyxla_take_error.restype = ctypes.c_bool
        self.library = library
        self.table = library.GetPjrtApi()
        self.size, self.extension, _, _, versions = (ctypes.c_uint64 * 5).from_address(self.table)
        self.version = (versions & 0xFFFFFFFF, versions >> 32)
        self.events_of_callers = 0

    def take_error(self) -> str | None:
        text = ctypes.create_string_buffer(200)
        return text.value.decode() if self.library.pyxla_take_error(text, ctypes.c_size_t(len(text))) else None

    def function(self, index: int) -> int:
        return ctypes.c_uint64.from_address(self.table + HEAD + index * POINTER).value

    def call(self, index: int, stated: int, words: list[int]) -> tuple[int | None, list[int]]:
        """Calls a function with a struct that states its size; returns the result and the struct's other words."""
        args = (ctypes.c_uint64 * (2 + len(words)))(stated, 0, *words)
        result = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self.function(index))(ctypes.addressof(args))
        assert args[0] == stated, "the caller's size is the caller's"
        return result, list(args[2:])


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "plugin.so"
    source = ROOT / "tests/probe/pjrt_plugin.cc"
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", source, "-o", path]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="module")
def proxy(plugin, tmp_path_factory):
    # A copy: with a GPU, the proxy itself already wraps XLA's plugin in this process.
    copy = shutil.copy(PROXY, tmp_path_factory.mktemp("proxy"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYXLA_PJRT_PLUGIN", str(plugin))
        return Proxy(ctypes.CDLL(copy))


def extensions(proxy: Proxy) -> list[tuple[int, int]]:
    """For each extension in the list, its type and the word after its header."""
    found, address = [], proxy.extension
    while address:
        _, kind, address, word = (ctypes.c_uint64 * 4).from_address(address)
        found.append((kind & 0xFFFFFFFF, word))
    return found


def first_extension(proxy: Proxy, kind: int) -> int:
    """The word after the header of the first extension of a type, the one that torch_xla uses."""
    return next(word for found, word in extensions(proxy) if found == kind)


def get_stream(proxy: Proxy, device: int) -> tuple[int | None, int]:
    """Requests a stream as torch_xla does, through the first extension for streams."""
    function = first_extension(proxy, 3)
    args = (ctypes.c_uint64 * 3)(24, device, 0)
    result = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(function)(ctypes.addressof(args))
    return result, args[2]


def create_view(proxy: Proxy, stream: int) -> int:
    """The stream that the plugin saw."""
    words = [*[0] * 9, stream, 0]
    result, words = proxy.call(93, stated=16 + 8 * len(words), words=words)
    assert result is None
    return words[10]


def test_head_and_extensions_are_the_vendors(proxy):
    assert (proxy.size, proxy.version) == (HEAD + 96 * POINTER, (0, 115))
    assert [kind for kind, _ in extensions(proxy)] == [1, 3, 0, 3, 1]


def test_profiler_s_table_has_the_size_that_torch_xla_knows(proxy):
    """With the vendor's table of 104 bytes, torch_xla would end the process when a profile starts."""
    shown, vendors = ((ctypes.c_uint64 * 10).from_address(word) for kind, word in extensions(proxy) if kind == 1)
    assert (shown[0], vendors[0]) == (80, 104)
    assert shown[2:] == vendors[2:] and all(shown[2:])


PROFILED = """
import ctypes, torch, torch_xla
from pyxla.torch_xla_patches import symbols
from jaxlib._profile_data import ProfileData
proxy = ctypes.CDLL({proxy!r})
proxy.GetPjrtApi.restype = ctypes.c_void_p
# What torch_xla does with a plugin once it has a device.
place = symbols.address("test", "_ZN9torch_xla7runtime8profiler25RegisterProfilerForPluginEPK8PJRT_Api")
register = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(place)
register(ctypes.c_void_p(proxy.GetPjrtApi()))
session = torch_xla._XLAC.profiler.TslProfilerSessionWrapper()
print(torch.ones(3, device="xla").sum().item())
print(sorted(plane.name for plane in ProfileData.from_serialized_xspace(session.stop()).planes))
"""


def test_torch_xla_profiles_with_the_plugin(plugin):
    env = {**os.environ, "PYXLA_PJRT_PLUGIN": str(plugin), "PJRT_DEVICE": "CPU"}
    script = PROFILED.format(proxy=str(PROXY))
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    total, planes = result.stdout.splitlines()
    assert total == "3.0" and "'probe'" in planes and "'/host:CPU'" in planes


def test_view_names_the_stream_that_its_thread_asked_for_last(proxy):
    """torch_xla makes a plugin's stream wait for the producer but does not name it; XLA would then read too early."""
    assert get_stream(proxy, 5) == (None, 5)
    assert get_stream(proxy, 7) == (None, 7)
    assert create_view(proxy, 0) == 7
    assert create_view(proxy, 0) == 0, "once for each import"


def test_view_that_names_a_stream_keeps_it(proxy):
    assert get_stream(proxy, 5) == (None, 5)
    assert create_view(proxy, 9) == 9
    assert create_view(proxy, 0) == 0


def test_stream_of_another_thread_is_not_taken(proxy):
    assert get_stream(proxy, 5) == (None, 5)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(create_view(proxy, 0)))
    thread.start()
    thread.join()
    assert seen == [0]
    assert create_view(proxy, 0) == 5


def test_memory_of_each_device(proxy, plugin):
    """In use, the peak and the limit. Before torch_xla has asked for the devices there are none."""

    def ask(device):
        figures = (ctypes.c_int64 * 3)()
        stats = proxy.library.pyxla_memory_stats
        stats.restype = ctypes.c_bool
        return list(figures) if stats(ctypes.c_size_t(device), figures) else None

    assert ask(0) is None
    assert proxy.call(16, 40, [0, 0, 0])[0] is None
    assert [ask(device) for device in range(3)] == [[100, 101, 107], None, None]
    assert ctypes.CDLL(str(plugin)).probe_errors_alive() == 0


def test_stream_that_the_plugin_refuses_is_not_taken(proxy):
    assert get_stream(proxy, 13) == (1, 0)
    assert create_view(proxy, 0) == 0


def test_function_that_the_vendor_lacks_stays_null(proxy):
    assert [i for i in range(96) if proxy.function(i)] == [
        *(0, 1, 4, 5, 8, 9, 10, 16, 20, 34, 40, 49, 51, 55, 56, 70, 72, 79, 93)
    ]


@pytest.mark.parametrize("index", [10, 79])
def test_shorter_struct_is_extended_with_zeros(proxy, index):
    """The plugin knows 10 words; the caller wrote 5. The plugin must not see the caller's memory after them."""
    result, words = proxy.call(index, stated=16 + 5 * 8, words=[1, 2, 3, 4, 99, 7, 7, 7])
    assert result is None
    assert words == [1, 2, 3, 10, 1, 7, 7, 7]


def test_struct_that_is_longer_than_the_vendors_is_kept(proxy):
    result, words = proxy.call(10, stated=16 + 14 * 8, words=[1, 2, 3, 4, 99, *[0] * 8, 5])
    assert (result, words[3:5], words[13]) == (None, [10, 0], 5)


def test_struct_without_room_for_a_copy_goes_through_as_it_is(proxy):
    result, words = proxy.call(10, stated=16 + 80 * 8, words=[1, 2, 3, 4, *[0] * 76])
    assert (result, words[3:5]) == (None, [10, 1])


def test_attributes_of_a_caller_that_states_too_little(proxy):
    """torch_xla states 24 bytes and reads 32."""
    assert proxy.call(4, stated=24, words=[0, 0, 5]) == (None, [11, 22, 5])


def test_options_of_execute_are_extended_too(proxy):
    """torch_xla has 80 bytes of options, the plugin needs 88."""
    options = (ctypes.c_uint64 * 12)(80, 0, 6, 0, 0, 0, 0, 0, 0, 0, 777, 888)
    result, words = proxy.call(55, stated=80, words=[0, ctypes.addressof(options), *[0] * 6])
    assert result is None
    assert words[:2] == [33, ctypes.addressof(options)]
    assert (options[0], options[4], options[10], options[11]) == (80, 6, 777, 888)


def test_execute_without_options(proxy):
    assert proxy.call(55, stated=80, words=[0] * 8)[0] == 1


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


def test_folder_that_is_gone_costs_the_graphs_alone(proxy, folder):
    folder.rmdir()
    compile_graph = Compiler(proxy)
    assert [compile_graph(b"program", b"abc") for _ in range(2)] == [sum(b"abc")] * 2
    assert compile_graph.news() == (2, 0)
    folder.mkdir()


@pytest.mark.parametrize("caller_wants_events", [False, True])
@pytest.mark.parametrize(
    ("executable", "want"), [(1, None), (13, "INTERNAL: probe: launch: expected cudaSuccess, got another")]
)
def test_error_of_an_execution_is_kept_once(proxy, plugin, caller_wants_events, executable, want):
    options = (ctypes.c_uint64 * 12)(80, *[0] * 11)
    events = (ctypes.c_uint64 * 2)()
    address = ctypes.addressof(events) if caller_wants_events else 0
    result, words = proxy.call(55, stated=80, words=[executable, ctypes.addressof(options), 0, 2, 0, 0, address, 0])
    assert (result, words[6]) == (None, address)
    assert proxy.take_error() == want
    assert proxy.take_error() is None
    library = ctypes.CDLL(str(plugin))
    assert library.probe_errors_alive() == 0
    # The caller destroys its own events.
    assert library.probe_events_alive() == proxy.events_of_callers + 2 * caller_wants_events
    proxy.events_of_callers += 2 * caller_wants_events


@pytest.mark.parametrize(
    ("buffer", "want"),
    [("good", "read 42\n"), ("bad", "caught INTERNAL: probe: launch: expected cudaSuccess, got another, read 0\n")],
)
def test_reading_a_result_that_never_was_is_an_exception(plugin, tmp_path, buffer, want):
    """torch_xla ends the process when the copy to the host fails, so the copy must not begin."""
    program = tmp_path / "caller"
    command = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", ROOT / "tests/probe/pjrt_caller.cc", "-o", program]
    subprocess.run([*command, "-ldl"], check=True)
    env = {**os.environ, "PYXLA_PJRT_PLUGIN": str(plugin)}
    result = subprocess.run([program, PROXY, buffer], env=env, capture_output=True, text=True, check=True)
    assert result.stdout == want


@pytest.mark.parametrize("named", [None, "/no/such/plugin.so", __file__])
def test_without_a_plugin_there_is_no_api(named):
    script = f"import ctypes; f = ctypes.CDLL({str(PROXY)!r}).GetPjrtApi; f.restype = ctypes.c_void_p; print(f())"
    env = {name: value for name, value in os.environ.items() if name != "PYXLA_PJRT_PLUGIN"}
    env |= {"PYXLA_PJRT_PLUGIN": named} if named else {}
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert result.stdout == "None\n"
    assert "pjrt_proxy: PYXLA_PJRT_PLUGIN: expected a PJRT plugin, got " in result.stderr
