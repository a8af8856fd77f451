"""The records of `devtool test` and `devtool bench`, and how they are read and shown."""

import json
import math
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from devtool import project
from devtool.bench.plot import plot_run
from devtool.records import store
from devtool.records.store import fingerprint, keep_bench, keep_tests, read_benches, read_tests
from devtool.report import plots
from devtool.report import view as report_view
from pyxla import ArgumentError, hlo, pytest_plugin, testing
from pyxla.testing import bad_input_checks, op_checks
from tests import bench_run

DEVICE = {"kind": "cpu", "name": "A processor"}
TEST = "kernels/one/test_one.py::test_op[check_lazy-f32]"


def check(case: str, *, ok: bool = True, share: float | None = 0.5, **more) -> dict:
    numbers = {} if share is None else {"share": share, "error": share * 2e-3, "allowed": 2e-3}
    return {"op": "one", "case": case, "why": "why", "check": "lazy", "test": TEST, "ok": ok} | numbers | more


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """A checkout with one op."""
    monkeypatch.setattr(project, "root", lambda: tmp_path)
    monkeypatch.setattr(project, "pyxla_folder", lambda: tmp_path / "pyxla")
    for name in (
        "one/one_ffi.cc",
        "one/cases.py",
        "one/NOTES.md",
        "one/vendor/include/theirs.h",
        "one/part/part.cuh",
        "../pyxla/include/pyxla/ffi.h",
        "../pyxla/include/pyxla/device/math.cuh",
        "_family/value.h",
        "_family/cases.py",
        "../pyxla/cmake/exports.map",
        "../pyxla/sync.py",
    ):
        path = tmp_path / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "kernels"


def test_whole_run_is_read_as_it_was_kept(kernels):
    outcomes = {
        TEST: "passed",
        "kernels/one/test_one.py::test_other": "failed",
        "kernels/two/test_two.py::test": "failed",
    }
    checks = [check("f32"), check("f32") | {"op": "two", "test": "kernels/two/test_two.py::test"}, check("x", test="")]
    keep_tests({"one": "digest"}, 1, DEVICE, checks, outcomes)
    ((kept,), problems) = read_tests("one")
    assert problems == [] and (kept.device, kept.sources, kept.ended) == ("cpu, A processor", "digest", None)
    inside = TEST.removeprefix("kernels/one/")
    assert kept.outcomes == {inside: "passed", "test_one.py::test_other": "failed"}
    assert kept.checks == [check("f32", test=inside)]
    assert read_tests("on") == ([], [])
    keep_tests({"untested": "digest"}, 0, DEVICE, [], outcomes)
    assert read_tests("untested") == ([], [])


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        *[("one/one_ffi.cc", True), ("one/cases.py", True), ("../pyxla/include/pyxla/ffi.h", True)],
        *[("../pyxla/cmake/exports.map", True), ("../pyxla/sync.py", False)],
        *[("one/vendor/include/theirs.h", True), ("one/NOTES.md", False)],
        *[("one/part/part.cuh", True), ("../pyxla/include/pyxla/device/math.cuh", True), ("_family/value.h", True)],
        ("_family/cases.py", True),
    ],
)
def test_fingerprint_is_of_what_a_test_depends_on(kernels, name, belongs):
    before = fingerprint("one")
    (kernels / name).write_text("changed")
    assert (fingerprint("one") != before) == belongs


def test_fingerprint_sees_a_file_that_comes_or_is_renamed(kernels):
    seen = {fingerprint("one")}
    (kernels / "one/one.cu").touch()
    seen.add(fingerprint("one"))
    (kernels / "one/one.cu").rename(kernels / "one/two.cu")
    seen.add(fingerprint("one"))
    assert len(seen) == 3


def test_disk_that_refuses_a_record_is_said_and_ends_nothing(kernels, capfd):
    (kernels.parent / "build").write_text("a file where a folder belongs")
    keep_tests({"one": "digest"}, 0, DEVICE, [], {TEST: "passed"})
    keep_bench(bench_run.run())
    said = capfd.readouterr().err
    assert said.count("record: a file cannot be read or written (") == 2
    assert "devtool report will not show this run: " in said and "one-cpu.json was not written" in said


def test_history_is_in_the_order_of_its_dates(kernels):
    late, early = bench_run.document(), bench_run.document(raw=2.0) | {"date": "2025-01-01T00:00:00+01:00"}
    for document in (late, early, late):
        keep_bench(bench_run.parse_run(document))
    runs, problems = read_benches()
    assert problems == [] and [run.document for run in runs] == [early, late]
    (view,) = report_view.speed_views("rms_norm", runs, "digest")
    assert view["best"] == (max(c.floor / c.layer("raw").median for c in runs[1].cases), "large")
    assert not view["fresh"] and report_view.speed_views("other", runs, "digest") == []


@pytest.mark.parametrize(
    "change",
    [{"date": "yesterday"}, {"date": 5}, {"device": {"name": "x"}}, {"sources": 5}, {"load": "much"}, {"cases": [{}]}],
    ids=str,
)
def test_run_that_is_none_is_named(kernels, change):
    (kernels.parent / "build/records/bench").mkdir(parents=True)
    path = kernels.parent / "build/records/bench/x.json"
    path.write_text(json.dumps(bench_run.document() | change))
    (runs, (problem,)) = read_benches()
    assert runs == [] and problem.startswith(
        "bench: build/records/bench/x.json: expected a run that devtool bench --json"
    )
    assert str(kernels.parent) not in problem


@pytest.mark.parametrize(
    "change",
    [{"schema": 2}, {"op": "two"}, {"device": "cpu"}, {"checks": [{}]}, {"date": None}, {"outcomes": []},
     {"checks": [{**check("x"), "share": "much"}]}],
    ids=str,
)  # fmt: skip
def test_record_of_tests_that_is_none_is_named(kernels, change):
    keep_tests({"one": "digest"}, 0, DEVICE, [check("f32")], {TEST: "passed"})
    (path,) = (store.folder() / "test").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (found, (problem,)) = read_tests("one")
    assert found == [] and problem.startswith(
        "report: build/records/test/one-cpu.json: expected a record that devtool test"
    )


def test_view_of_a_run_with_failures(kernels):
    wrong = check("bf16", ok=False, share=None, problem="one[bf16]: values: expected <1>, got 2")
    outcomes = {TEST: "passed", f"{TEST}2": "failed", "kernels/one/test_one.py::test_other": "failed"}
    keep_tests({"one": "x"}, 1, DEVICE, [check("f32", share=0.25), wrong | {"test": f"{TEST}2"}], outcomes)
    view = report_view.tests_view("one", read_tests("one")[0][0], "y")
    assert view["counts"] == {"passed": 1, "failed": 2, "skipped": 0} and not view["fresh"]
    assert view["problems"] == [("bf16", "lazy", "one[bf16]: values: expected <1>, got 2")]
    assert view["failed"] == ["test_one.py::test_other"] and view["others"]["failed"] == 1
    assert view["worst"].case == "f32" and [row["cells"]["lazy"] for row in view["rows"]] == [True, False]
    # The failed check is a cross on the line of the tolerance.
    good, bad = view["plot"].split('<g class="')[1:]
    assert good.startswith("ok") and "<circle" in good and bad.startswith("bad") and "<circle" not in bad
    roof = re.search(r'class="limit" d="M\d+ ([\d.]+)H', view["plot"])[1]
    assert "bf16: FAILED" in bad and re.search(rf"translate\([\d.]+ {re.escape(roof)}\)", bad)


def test_check_records_the_worst_element_and_what_it_may_be_off():
    from pyxla_kernels.simple_add.simple_add import simple_add

    third = torch.tensor([1.0, 1 / 3, 5.0], dtype=torch.bfloat16)
    case = testing.Case("thirds", "why", lambda g: {"a": third, "b": third, "alpha": 2.0})
    count = len(op_checks.RECORDS)
    try:
        testing.check_cpu(simple_add, case)
        (record,) = op_checks.RECORDS[count:]
    finally:
        del op_checks.RECORDS[count:]
    wide = third.double() * 3
    errors = (wide.bfloat16().double() - wide).abs()
    # One unit in the last place of bfloat16, 2^-7 of the power of two below, plus 16 roundings of the largest value.
    allowed = 2.0 ** (wide.abs().log2().floor() - 7) + 16 * 2.0**-23 * wide.max()
    worst = int((errors / allowed).argmax())
    assert record["error"] == errors[worst] and record["allowed"] == pytest.approx(allowed[worst].item(), rel=1e-12)
    assert record["share"] == pytest.approx(record["error"] / record["allowed"]) and record["ok"]
    assert record["test"].endswith("test_check_records_the_worst_element_and_what_it_may_be_off")


def test_check_that_fails_records_why():
    from pyxla_kernels.simple_add.simple_add import simple_add

    case = testing.Case("bad", "why", lambda g: {"a": torch.ones(2), "b": torch.ones(2).half(), "alpha": 2.0})
    count = len(op_checks.RECORDS)
    try:
        with pytest.raises(ValueError, match="simple_add: b: expected dtype"):
            testing.check_cpu(simple_add, case)
        (record,) = op_checks.RECORDS[count:]
    finally:
        del op_checks.RECORDS[count:]
    assert (record["ok"], record["problem"]) == (False, "simple_add: b: expected dtype float32, got float16")
    assert "share" not in record


@pytest.mark.parametrize(
    ("device_type", "at_run_time", "passes"), [("CUDA", True, True), ("CUDA", False, False), ("CPU", True, False)]
)
def test_only_cuda_may_take_what_only_the_data_shows(monkeypatch, device_type, at_run_time, passes):
    """CUDA handlers cannot raise for wrong data, so the tests of every op with such bad inputs would fail there."""
    from pyxla_kernels.simple_add.simple_add import simple_add

    def op(a, b):
        if a.device.type == "cpu":
            raise ArgumentError("simple_add: a: expected 0, got 1")
        return simple_add(a, b)

    op.name, op.schema = "simple_add", simple_add.schema
    bad = testing.BadInput(
        "one", lambda g: {"a": torch.ones(2), "b": torch.ones(2)}, "a: expected 0, got 1", at_run_time=at_run_time
    )
    monkeypatch.setattr(bad_input_checks, "device_type", lambda: device_type)
    with nullcontext() if passes else pytest.raises(AssertionError, match="expected 0, got 1' on xla, got no error"):
        testing.check_bad_input(op, bad)


@pytest.mark.parametrize(("copy", "matrix"), [(1e10, 1e11), (1e6, 1e5), (1e13, 1e15)])
def test_roofline_holds_all_marks_whatever_the_rates(copy, matrix):
    """A busy machine can measure rates below those that a kernel reaches one second later."""
    document = bench_run.document()
    document["rates"]["copy"]["per_second"], document["rates"]["matrix"]["per_second"] = copy, matrix
    plot = plots.roofline(bench_run.parse_run(document), "label")
    marks = re.findall(r'class="series s\d" transform="translate\(([\d.-]+) ([\d.-]+)\)', plot)
    assert len(marks) == 10 and all(62 < float(x) < 604 and 5 < float(y) < 262 for x, y in marks)


@pytest.mark.parametrize(
    ("dtype", "device_type", "allowed"),
    [
        (torch.bfloat16, "CUDA", 512),
        (torch.float32, "CUDA", 16),  # such as a log-sum-exp in addition to a result of 16 bits
        (torch.bfloat16, "CPU", 16),
    ],
)
def test_a_gpu_may_round_more_in_a_result_of_16_bits_alone(dtype, device_type, allowed):
    case = testing.Case("case", "why", lambda g: {}, cuda_roundings=512)
    assert case.roundings_of(torch.ones(1, dtype=dtype), device_type) == allowed
    assert testing.Case("case", "why", lambda g: {}).roundings_of(torch.ones(1, dtype=dtype), device_type) == 16


def test_a_worker_of_xdist_has_its_own_folder_of_modules(monkeypatch):
    """It starts with its parent's XLA_FLAGS, and XLA uses the last of two folders."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/parents --xla_dump_hlo_as_text")
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    for workerinput, is_own in ((None, False), ({}, True)):
        config = SimpleNamespace(getoption=lambda name: "cpu", addinivalue_line=lambda name, line: None)
        if workerinput is not None:
            config.workerinput = workerinput
        pytest_plugin.pytest_configure(config)
        assert (hlo.dump_folder() != Path("/parents")) == is_own
        if is_own:
            assert hlo.dump_folder() == Path(config.pyxla_dump.name)
            config.pyxla_dump.cleanup()


@pytest.mark.parametrize(
    ("key", "value"), [("rounds", math.inf), ("bytes", -1), ("bytes", math.inf), ("operations", 1.5)], ids=str
)
def test_bench_with_an_impossible_number_is_no_record(kernels, key, value):
    """OverflowError or "math domain error" must not end `devtool report`."""
    document = bench_run.document()
    (document if key in document else document["cases"][0])[key] = value
    path = store.folder() / "bench/run.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))
    found, (problem,) = read_benches()
    assert found == [] and "expected a run that devtool bench --json wrote (schema 1), got another document" in problem


def test_bench_that_moves_nothing_is_shown_and_drawn(tmp_path):
    """For an input without elements the operations per byte are NaN, which must not break the page or the plot."""
    document = bench_run.document()
    document["cases"][0]["bytes"] = 0
    run = bench_run.parse_run(document)
    (view,) = report_view.speed_views("rms_norm", [run], "digest")
    assert "large, raw" in view["plot"] and "small, raw" not in view["plot"]
    plot_run(run, tmp_path / "run.png")
    bench_run.assert_is_picture(tmp_path / "run.png")
