"""pjrt_proxy: every call reaches the vendor's plugin with a large enough struct, and its results come back."""

import ctypes
import os
import subprocess
import sys
import threading

import pytest

from tests.conftest import ROOT
from tests.pjrt.proxy import HEAD, POINTER, PROXY, Proxy


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


def test_stream_of_a_gpu_by_its_number(proxy, plugin):
    """The client may have but some of the machine's GPUs: here 5 and 6."""
    ask, stream = proxy.library.pyxla_ask_stream, ctypes.c_ssize_t()
    ask.restype = ctypes.c_bool
    result, words = proxy.call(16, 40, [77, 0, 0])
    assert result is None
    devices = (ctypes.c_ssize_t * 2).from_address(words[1])
    for gpu, device in ((5, devices[0]), (6, devices[1])):
        assert ask(ctypes.c_int(gpu), ctypes.byref(stream))
        assert stream.value == device == create_view(proxy, 0)
    assert not ask(ctypes.c_int(0), ctypes.byref(stream)) and not ask(ctypes.c_int(7), ctypes.byref(stream))
    assert ctypes.CDLL(str(plugin)).probe_errors_alive() == 0


def test_stream_that_the_plugin_refuses_is_not_taken(proxy):
    assert get_stream(proxy, 13) == (1, 0)
    assert create_view(proxy, 0) == 0


def test_function_that_the_vendor_lacks_stays_null(proxy):
    assert [i for i in range(96) if proxy.function(i)] == [
        *(0, 1, 4, 5, 8, 9, 10, 16, 18, 20, 34, 40, 49, 51, 55, 56, 70, 72, 79, 93)
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
