"""The parts of pyxla.trace that read text: modules and their changes, the logs of torch and torch_xla."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pyxla.hlo.dump import written_files
from pyxla.trace.causes import Module, changes
from pyxla.trace.events import dynamo_events, graph_events
from pyxla.trace.op_times import op_times
from pyxla.trace.places import is_library, package_folders, user_place
from pyxla.trace.report import Files
from tests.conftest import ROOT
from tests.inspection.test_profile import profile

MODULE = """HloModule SyncTensorsGraph.5, entry_computation_layout={(f32[4]{0})->(f32[4]{0})}

ENTRY %SyncTensorsGraph.5 (p0.1: f32[4]) -> (f32[4]) {
  %constant.2 = s32[] constant(4), metadata={op_type="aten__sum" source_file="/x/a.py" source_line=1}
  %p0.1 = f32[4]{0} parameter(0)
  %multiply.3 = f32[4]{0} multiply(%p0.1, %p0.1), metadata={op_type="aten__mul" source_file="/x/a.py" source_line=2}
  ROOT %tuple.4 = (f32[4]{0}) tuple(%multiply.3)
}
"""


def test_equal_modules_have_no_changes_whatever_their_names():
    assert changes(Module(MODULE), Module(MODULE.replace("multiply.3", "multiply.17"))) == []


def test_a_changed_parameter_is_the_only_change():
    """The consequences of a change are omitted, and so is the size that torch_xla keeps as an unused constant."""
    (changed,) = changes(
        Module(MODULE), Module(MODULE.replace("f32[4]", "f32[9]").replace("constant(4)", "constant(9)"))
    )
    assert (changed.what, changed.before, changed.after) == ("parameter 0", "f32[4]", "f32[9]")
    # A parameter has no line; the report names the first line that uses it.
    assert changed.place == ("/x/a.py", 2)


def test_a_block_that_was_cut_short_is_left_out():
    text = (
        "Execution Analysis: ====\nExecution Analysis: Execution Cause\nExecution Analysis:   most likely\n"
        "Execution Analysis: Graph Info: \nExecution Analysis:   Graph Hash: abc\n"
        f"Execution Analysis: Python Frame Triggered Execution: \nExecution Analysis:   <module> ({ROOT}/x.py:3)\n"
        "Execution Analysis: ----\nExecution Analysis: ====\n"
    )
    (event,) = graph_events(text + text[:100])
    assert (event.graph, event.cause, event.place) == ("abc", "read", (f"{ROOT}/x.py", 3))


def test_dynamo_s_file_may_be_empty():
    assert dynamo_events("").breaks.total() == 0


def test_modules_past_the_four_digits_of_their_names_keep_their_order(tmp_path):
    """Modules are matched with compilations by order, which must also hold from the ten thousandth on."""
    names = [f"module_{number:04d}.SyncTensorsGraph.15.before_optimizations.txt" for number in (9, 1000, 9999, 10000)]
    with written_files(tmp_path, "*.txt") as found:
        for name in reversed(names):
            (tmp_path / name).write_text("")
    files = Files(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path, since=0)
    assert [path.name for path in files.written(tmp_path, "*.txt")] == names
    assert [path.name for path in found] == names


def test_files_of_an_earlier_run_are_left_out(tmp_path):
    """The folder of the user's own --xla_dump_to may already contain modules."""
    for name, written in (("old.txt", 1000), ("new.txt", 3000)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (written, written))
    files = Files(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path, since=2000)
    assert [path.name for path in files.written(tmp_path, "*.txt")] == ["new.txt"]


def test_packages_are_left_out_wherever_they_lie(tmp_path, monkeypatch):
    """With torch_xla in a folder of PYTHONPATH, a sync must not be shown at torch_xla's own line."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/made_up_torch").mkdir()
    (tmp_path / "kept/made_up_torch/__init__.py").touch()
    (tmp_path / "some").symlink_to("kept")
    monkeypatch.syspath_prepend(tmp_path / "some")
    folders = package_folders(["made_up_torch", "no_such_package"])
    assert folders == tuple(f"{tmp_path}/{folder}/made_up_torch/" for folder in ("some", "kept"))
    monkeypatch.setattr("pyxla.trace.places._LIBRARIES", folders)
    user = (f"{tmp_path}/some/script.py", 3)
    assert user_place([(f"{tmp_path}/some/made_up_torch/torch_xla.py", 87), user]) == user
    assert user_place([(f"{tmp_path}/kept/made_up_torch/a.py", 1), (f"{tmp_path}/made_up_torch/a.py", 2)])[1] == 2


@pytest.mark.parametrize("package", ["torch", "torch_xla", "pyxla"])
def test_packages_whose_frames_are_left_out(package):
    folder = Path(find_spec(package).origin).parent
    assert is_library(str(folder / "a.py")) and is_library(str(folder.resolve() / "a.py"))
    assert not is_library(f"/x/{package}/a.py")


def op_times_of(folder: Path, data: bytes, why: str | None = None) -> tuple:
    (folder / "profile-1.xspace").write_bytes(data)
    module = folder / "module_0001.same.cpu_after_optimizations.txt"
    call = '  %custom-call.1 = f32[4]{0} custom-call(%p), custom_call_target="xla_gpu_rms_norm"\n'
    module.write_text(f"HloModule same\n\nENTRY %main {{\n{call}}}\n")
    record = {"profile": {"file": "profile-1.xspace", "why": why}, "libraries": {}}
    return op_times(record, folder, [module])


def test_times_per_op(tmp_path):
    """Module 2 has the same name as module 1, but its call is not counted for the op."""
    data = profile(("custom-call.1", 1, 0, 3), ("custom-call.1", 2, 4, 1))
    found, notes = op_times_of(tmp_path, data, "it ended early")
    assert [(e["op"], e["calls"], e["share"]) for e in found["ops"]] == [
        ("rms_norm", 1, pytest.approx(0.75)),
        ("the rest of XLA", 1, pytest.approx(0.25)),
    ]
    assert found["seconds"] == pytest.approx(4e-6) and found["busy"] == pytest.approx(0.8)
    assert notes == ["it ended early"]


def test_no_times_per_op(tmp_path, monkeypatch):
    """Each case says why, and the report continues."""
    assert op_times({}, tmp_path, []) == (None, [])
    ended = {"profile": {"file": None, "why": "ALREADY_EXISTS"}, "libraries": {}}
    assert op_times(ended, tmp_path, []) == (None, ["no times per op: ALREADY_EXISTS"])
    assert op_times_of(tmp_path, b"") == (None, ["no times per op: the profile holds none of this device"])
    _, cut = op_times_of(tmp_path, profile(("dot.1", 1, 0, 1))[:-3])
    assert cut == ["no times per op: the profile holds none of this device", "XLA's profile is cut short"]
    monkeypatch.setitem(sys.modules, "jaxlib._profile_data", None)
    _, (missing,) = op_times_of(tmp_path, profile())
    assert missing.startswith("no times per op: the profile cannot be read: ModuleNotFoundError: ")
