"""pyxla.inspection.profile on profiles in text form: times per op, nested events, and missing data."""

import warnings
from types import SimpleNamespace

import pytest
from jaxlib._profile_data import ProfileData

from pyxla.inspection.profile import DeviceTimes, _computed, kernels_in

PLANE = """
planes {{ name: "{plane}" lines {{ name: "line" {events} }} {names}
  stat_metadata {{ key: 1 value {{ id: 1 name: "hlo_op" }} }}
  stat_metadata {{ key: 2 value {{ id: 2 name: "program_id" }} }}
  stat_metadata {{ key: 3 value {{ id: 3 name: "hlo_module" }} }} }}
"""


def profile(*events: tuple[str, int, int, int], plane: str = "/host:CPU", more: str = "") -> bytes:
    """A profile of (instruction, module's number, start in us, us), all in modules of the same name."""
    shown = "".join(
        f"events {{ metadata_id: {n} offset_ps: {start}000000 duration_ps: {length}000000 stats {{ metadata_id: 1 "
        f'str_value: "{name}" }} stats {{ metadata_id: 2 int64_value: {module} }} '
        'stats { metadata_id: 3 str_value: "same" } } '
        for n, (name, module, start, length) in enumerate(events, 1)
    )
    names = "".join(
        f'event_metadata {{ key: {n} value {{ id: {n} name: "{e[0]}" }} }} ' for n, e in enumerate(events, 1)
    )
    text = PLANE.format(plane=plane, events=shown, names=names) + more
    return ProfileData.text_proto_to_serialized_xspace(text)


def times(data: bytes, ops: dict | None = None) -> DeviceTimes:
    found = DeviceTimes()
    found.read(data, ops or {}, {})
    return found


def test_a_loop_has_not_the_time_of_its_rounds():
    """XLA:CPU also records the loop around its instructions; adding it would double the real time."""
    found = times(profile(("while.1", 0, 0, 10), ("dot.2", 0, 1, 3), ("dot.2", 0, 5, 4), ("add.3", 0, 12, 2)))
    assert found.seconds == {"matrix products": pytest.approx(7e-6), "the rest of XLA": pytest.approx(5e-6)}
    assert found.calls == {"matrix products": 2, "the rest of XLA": 2}
    assert found.busy == pytest.approx(12 / 14)


def test_modules_of_one_name_are_told_apart_by_their_numbers():
    data = profile(("custom-call.1", 0, 0, 1), ("custom-call.1", 1, 2, 3))
    found = times(data, {(0, "custom-call.1"): "rms_norm", (1, "custom-call.1"): "simple_add"})
    assert found.seconds == {"rms_norm": pytest.approx(1e-6), "simple_add": pytest.approx(3e-6)}
    assert times(data, {("same", "custom-call.1"): "rms_norm"}).calls == {"rms_norm": 2}


def test_a_profile_of_nothing():
    assert times(b"") == DeviceTimes()
    assert times(profile()).busy == 0


def test_what_the_profiler_says_of_dropped_events():
    """jaxlib's reader provides only the planes."""
    said = 'errors: "no CUPTI" warnings: "7 events dropped"'
    assert times(profile(("dot.1", 0, 0, 1), more=said)).notes == [
        "XLA's profiler: no CUPTI",
        "XLA's profiler: 7 events dropped",
    ]


def test_a_gpu_s_profile_that_is_full(monkeypatch):
    monkeypatch.setattr("pyxla.inspection.profile._KEPT", 2)
    data = profile(("a", 0, 0, 1), ("b", 0, 2, 1), plane="/device:GPU:0")
    assert times(data).notes == ["/device:GPU:0: the profile holds 2 events; XLA drops what comes after a million"]
    assert times(profile(("a", 0, 0, 1), plane="/device:GPU:0")).notes == []


def test_a_gpu_that_the_profile_does_not_have():
    """The host's events would be taken for the GPU's."""
    found = DeviceTimes()
    found.read(profile(("dot.1", 0, 0, 1)), {}, {}, on_gpu=True)
    assert found.calls == {} and found.notes[0].startswith("XLA's profile has no GPU")


def test_a_reader_that_python_warns_of():
    """From Python 3.12 on jaxlib's type of an event's statistics does, at its first use; here warnings are errors."""

    class Event:
        name, start_ns, duration_ns = "kernel", 1.0, 2.0

        @property
        def stats(self):
            warnings.warn("builtin type event_stats has no __module__ attribute", DeprecationWarning, stacklevel=2)
            return [("hlo_op", "dot.1")]

    assert _computed(SimpleNamespace(events=[Event()]), 3) == (4, [(1.0, 3.0, "kernel", {"hlo_op": "dot.1"})])


def test_ops_that_share_a_library_share_its_kernels(tmp_path):
    library = tmp_path / "liba.so"
    library.write_bytes(b"\x7fELF\0.text.rows\0")
    assert kernels_in([("b", library), ("a", library)]) == {"rows": "a, b"}
