"""The parts of pyxla.trace that read text: modules and what changed between them, the logs of torch and torch_xla."""

import os

from pyxla.dump import written_files
from pyxla.trace.causes import Module, changes
from pyxla.trace.events import dynamo_events, graph_events
from pyxla.trace.report import Files
from tests.conftest import ROOT

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
    """What follows from it is left out, with the size that torch_xla leaves behind as an unused constant."""
    (changed,) = changes(
        Module(MODULE), Module(MODULE.replace("f32[4]", "f32[9]").replace("constant(4)", "constant(9)"))
    )
    assert (changed.what, changed.before, changed.after) == ("parameter 0", "f32[4]", "f32[9]")
    # It has no line of its own: the first one that takes it.
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
    """Modules are joined with compilations by their order: from the ten thousandth on all were another's."""
    names = [f"module_{number:04d}.SyncTensorsGraph.15.before_optimizations.txt" for number in (9, 1000, 9999, 10000)]
    with written_files(tmp_path, "*.txt") as found:
        for name in reversed(names):
            (tmp_path / name).write_text("")
    files = Files(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path, since=0)
    assert [path.name for path in files.written(tmp_path, "*.txt")] == names
    assert [path.name for path in found] == names


def test_files_of_an_earlier_run_are_left_out(tmp_path):
    """The user's own --xla_dump_to may hold modules already."""
    for name, written in (("old.txt", 1000), ("new.txt", 3000)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (written, written))
    files = Files(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path, since=2000)
    assert [path.name for path in files.written(tmp_path, "*.txt")] == ["new.txt"]
