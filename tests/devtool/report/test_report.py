"""`devtool report`: the page of a tree with a good op, broken ones and records of every kind; and its errors."""

import json
import os
import re
import signal
import statistics
import time
from html import unescape

import pytest

from devtool.bench.table import duration, rate
from devtool.testing.table import COLUMNS
from tests.report_page import NIXPKGS, OPS
from tests.small_tree import mounted


@pytest.fixture(scope="module")
def text(report_page):
    return report_page.page.read_text()


def section(text: str, op: str) -> str:
    """The page's text about an op, without tags."""
    found = re.search(rf'<section id="{op}".*?</section>', text, re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", found[0])))


def table(text: str, op: str, label: str) -> list[list[str]]:
    """The cells of the table in the box with this label."""
    part = re.search(rf'<section id="{op}".*?</section>', text, re.DOTALL)[0]
    box = re.search(rf'aria-label="{re.escape(label)}.*?</table>', part, re.DOTALL)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", box, re.DOTALL)
    return [
        [unescape(re.sub(r"<[^>]*>", "", c)).strip() for c in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows
    ]


def test_page_is_whole_and_small(report_page, text):
    assert text.startswith("<!doctype html>") and text.endswith("</html>")
    assert report_page.page.stat().st_size < 400_000 and not list(report_page.page.parent.glob(".page.html*"))
    assert re.findall(r'<section id="(\w+)"', text) == ["summary", *OPS]
    assert not re.search(r'(src|href)=(?!"#)|url\(|@import|<script|<link', text)


def test_page_names_no_folder_of_this_machine(report_page, text):
    assert str(report_page.tree.root) not in text


def test_schema_and_docstring(text):
    shown = section(text, "simple_add")
    assert "simple_add(Tensor a, Tensor b, float alpha=1.0) -> Tensor" in shown
    assert "a + alpha * b, without broadcasting." in shown


def test_what_built_the_library(report_page, text):
    compiler = json.loads(report_page.tree.library("simple_add").with_suffix(".json").read_text())["compiler"]
    assert f"built by {compiler} of nixpkgs {NIXPKGS} Tests and accuracy" in section(text, "simple_add")


def test_test_table_is_the_record(report_page, text):
    record = report_page.tests()
    assert record["device"]["kind"] == "cpu" and record["ended"] is None and len(record["sources"]) == 64
    passed = sum(outcome == "passed" for outcome in record["outcomes"].values())
    assert passed == len(record["outcomes"]) > 60 and f" {passed} passed " in section(text, "simple_add")
    head, *rows = table(text, "simple_add", "Cases of simple_add on cpu")
    assert head[:3] == ["case", "custom call", "raw call"] and head[-3:] == ["worst error", "allowed", "share"]
    cases = {check["case"]: [c for c in record["checks"] if c["case"] == check["case"]] for check in record["checks"]}
    assert len(rows) == len(cases) == 13
    assert {check["check"] for check in record["checks"]} == set(COLUMNS.values())
    for row, (case, checks) in zip(rows, cases.items(), strict=True):
        worst = max((c for c in checks if "share" in c), key=lambda c: c["share"])
        ran = {c["check"] for c in checks}  # all checks for the first case of a form, otherwise these two
        assert {"raw", "lazy"} <= ran
        assert row[0].startswith(case) and row[0].endswith(checks[0]["why"])
        assert row[1:7] == ["ok" if check in ran else "\N{EN DASH}" for check in COLUMNS.values()]
        assert row[7:9] == [f"{worst['error']:.2g}", f"{worst['allowed']:.2g}"]
        assert row[9] == f"{100 * worst['share']:.0f}\xa0%"


def test_accuracy_plot_has_a_point_for_each_case(text):
    plot = re.search(r'<svg class="plot accuracy".*?</svg>', text, re.DOTALL)[0]
    foot, roof = (float(re.search(rf'y="([\d.]+)" [^>]*>{t}<', plot)[1]) - 4 for t in ("0%", "100%"))
    points = dict(re.findall(r"<title>([\w-]+): error.*?<circle[^>]*translate\([\d.]+ ([\d.]+)\)", plot))
    rows = {row[0]: row[9] for row in table(text, "simple_add", "Cases of simple_add on cpu")[1:]}
    assert len(points) == 13
    for case, y in points.items():
        shown = next(share for name, share in rows.items() if name.startswith(case))
        assert abs(100 * (foot - float(y)) / (foot - roof) - int(shown.split("\xa0")[0])) < 1


def test_speed_is_the_newest_run(report_page, text):
    run = report_page.bench()
    assert run["sources"] == {"simple_add": report_page.tests()["sources"]}
    case = run["cases"][0]
    median = statistics.median(case["layers"][0]["seconds"])
    share = case["bytes"] / run["rates"]["copy"]["per_second"] / median
    _, row, *_ = table(text, "simple_add", "Times of simple_add on")
    assert row[:2] == ["f32-1024x4096", "raw"] and row[2] == duration(median)
    assert (row[4], row[5]) == (rate(case["bytes"] / median, "copy"), f"{share:.0%}")
    roof = re.search(r'<svg class="plot roofline".*?</svg>', text, re.DOTALL)[0]
    assert f"<title>f32-1024x4096, raw: {row[4]}, {row[5]}</title>" in roof


def test_history_has_every_run(report_page, text):
    run = report_page.bench()
    _, *rows = table(text, "simple_add", "All runs of simple_add")
    assert [row[-1] for row in rows] == ["as now", "01234567"]
    assert rows[1][0] == "2026-01-02 03:04" and rows[0][1] == run["date"][:16].replace("T", " ")
    now, before = (float(row[-2].rstrip("%")) for row in rows)
    assert abs(now - 2 * before) <= 1.5  # each rounded
    _, row = table(text, "simple_add", "History of simple_add")
    assert row[:2] == ["f32-1024x4096", "2"] and row[-2:] == [f"{now:.0f}\xa0%"] * 2


def test_hlo(text):
    shown = section(text, "simple_add")
    assert "on CPU: 1 custom call, 0 copies." in shown and "xla_gpu_simple_add (custom-call" in shown
    (graph,) = re.findall(r'<svg[^>]*class="hlo" role="img".*?</svg>', text, re.DOTALL)
    assert "xla_gpu_simple_add" in graph


def test_machine_code(text):
    head, *rows = table(text, "raises", "Kernels of raises for sm_80")
    assert head == ["kernel", "registers", "shared bytes", "stack bytes", "local accesses", "instructions", "mix"]
    assert [row[0] for row in rows] == ["Kernel<float, 4>", "spills"]
    assert [row[2:4] for row in rows] == [["256", "0"], ["0", "64"]] and int(rows[1][4]) >= 2
    summary = table(text, "summary", "Summary of all ops")
    assert next(row for row in summary if row[0] == "raises")[-3::2] == ["2", "1"]


def test_profile_of_a_call_with_its_source(text):
    shown = section(text, "simple_add")
    assert "simple_add f32-1024x4096, NVIDIA H100 80GB HBM3, CUDA 13.0 a call takes 370 us" in shown
    assert "The DRAM is at 88.9 % of its peak: only fewer bytes make the kernel faster." in shown
    figures = dict(table(text, "simple_add", "Figures of DecodeKernel")[1:])
    assert figures["duration"] == "361 us" and figures["occupancy, at most"] == "18.8 %"
    _, *stalls = table(text, "simple_add", "Stalls of DecodeKernel")
    assert stalls[0] == ["long_sb (global or local memory)", "83.9 %"]
    part = re.search(r'aria-label="[^"]*kernel\.cuh of DecodeKernel.*?</table>', text, re.DOTALL)[0]
    rows = [re.findall(r"<td.*?</td>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", part, re.DOTALL)]
    rows = [[unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in rows]
    (hottest,) = (row for row in rows if row[:1] == ["74"])
    assert (*hottest[1:3], hottest[4]) == ("51.8\xa0%", "long_sb", "LOP3.LUT")
    above = rows[rows.index(hottest) - 1]
    assert above[:2] == ["73", ""] and ["\N{HORIZONTAL ELLIPSIS}"] in rows
    assert "No record: devtool profile bare makes one on a GPU." in section(text, "bare")


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("bare", "report: bare: expected a built library, got none hint: devtool build bare"),
        ("bare", "Its library is not built. hint: devtool build bare"),
        (
            "bare",
            "report: build/records/test/bare-cpu.json: expected a record that devtool test wrote, got invalid JSON",
        ),
        ("bare", "hlo: bare: expected kernels/bare/cases.py, got none"),
        ("bare", "ModuleNotFoundError: No module named 'pyxla_kernels.bare.bare'"),
        ("bare", "The op has no test file."),
        ("dies", "report: dies: the process that runs the op crashed (SIGSEGV)"),
        ("empty", "hlo: empty: expected a case in CASES of kernels/empty/cases.py, got none hint: kernels/simple_add"),
        ("raises", "ValueError: <b>no</b> cases & no luck"),
        ("raises", "that devtool test wrote (schema 1), got another document: ValueError('schema 7 of raises')"),
        ("simple_add", "report: libsimple_add.so: expected CUDA code, got only host code"),
    ],
)
def test_what_is_missing_says_so_and_how_to_get_it(text, op, message):
    assert message in section(text, op)


def test_foreign_bench_record_is_named(text):
    message = "bench: build/records/bench/foreign.json: expected a run that devtool bench --json wrote (schema 1), got"
    assert message in section(text, "summary")
    message = "profile: build/records/profile/foreign.json: expected a file of devtool profile --json (schema 1), got"
    assert message in section(text, "summary")


def test_command_says_what_it_wrote_and_what_is_missing(report_page):
    assert re.search(r"^report: wrote .*page\.html: 5 ops, \d\d kB$", report_page.result.stderr, re.MULTILINE)
    assert (
        "\n  devtool build bare\n" in report_page.result.stderr
        and "\n  devtool bench dies\n" in report_page.result.stderr
    )
    assert "devtool test simple_add" not in report_page.result.stderr and report_page.result.stdout == ""


def test_records_older_than_the_sources(report_page, tmp_path):
    tree = report_page.tree
    cases = tree.kernels / "simple_add/cases.py"
    before = cases.read_text()
    cases.write_text(before + "# changed\n")
    result = tree.run("report", "simple_add", "--output", str(tmp_path / "page.html"))
    cases.write_text(before)
    shown = section((tmp_path / "page.html").read_text(), "simple_add")
    for what in ("test", "bench"):
        command = f"devtool {what} simple_add --device cpu"
        assert f"Its sources changed since the {what} run on cpu shown here. hint: {command} " in shown
        assert f"\n  {command}\n" in result.stderr


def test_part_of_the_tests_leaves_the_record_alone(report_page):
    tree, before = report_page.tree, report_page.tests()
    assert tree.run("test", "simple_add", "--device", "cpu", "--", "-k", "check_cpu and f32-3x5").returncode == 0
    assert tree.run("test", "simple_add", "--device", "cpu", "--raw").returncode == 0
    assert report_page.tests() == before


def test_tests_that_crash_leave_a_record(report_page):
    tree = report_page.tree
    test = tree.kernels / "bare/test_bare.py"
    test.write_text("import os, signal\ndef test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)\n")
    assert tree.run("test", "bare", "--device", "cpu").returncode == 1
    record = report_page.tests("bare")
    assert (record["ended"], record["outcomes"]) == ("signal 11", {})


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["simpel_add", "--output", "x.html"],
            2,
            "report: OP: expected a folder of kernels/ (bare, dies, empty, raises, simple_add)",
        ),
        (["--output", "none/x.html"], 1, "report: --output: expected a file in a folder that exists, got none/x.html"),
        (["--output", "build"], 2, "devtool report: arguments: expected those in its help, got: Invalid value"),
        ([], 2, "devtool report: arguments: expected those in its help, got: Missing option '--output'"),
    ],
)
def test_misuse(report_page, arguments, status, message):
    result = report_page.tree.run("report", *arguments)
    assert (result.returncode, result.stdout) == (status, "") and result.stderr.startswith(message)
    assert "\n\nhint: " in result.stderr


@pytest.mark.parametrize(
    ("options", "flags", "message"),
    [("size=1m", 1, "--output"), pytest.param("size=4k", 0, "the disk is full", marks=pytest.mark.slow)],
)
def test_disk_that_is_full_or_read_only(report_page, tmp_path, options, flags, message):
    with mounted(tmp_path / "disk", options, flags):
        page = tmp_path / "disk/page.html"
        result = report_page.tree.run("report", "simple_add", "--output", str(page))
        assert (result.returncode, list(page.parent.iterdir())) == (1, [])
    assert f"report: {message}" in result.stderr and "Traceback" not in result.stderr


def test_interrupt_ends_what_it_started(report_page):
    child = report_page.tree.start("report", "--output", "late.html")
    assert child.stderr.readline().startswith("report: inspecting bare, dies, empty, raises, simple_add")
    time.sleep(1)
    os.kill(child.pid, signal.SIGINT)
    _, stderr = child.communicate(timeout=30)
    assert child.returncode == 130 and stderr.endswith("devtool: interrupted\n")
    assert not (report_page.tree.root / "late.html").exists()


def test_page_takes_few_seconds(report_page):
    """The processor time of three processes, because two ops end theirs or have none: torch_xla is imported twice."""
    assert report_page.seconds < 45
