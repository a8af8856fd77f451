"""The saved runs of docs/bench, and the tables that `devtool bench --table` makes of them."""

import json
import statistics

import click
import pytest

from devtool import project
from devtool.bench.kept import BEGIN, END, keep, read_kept, write_tables
from devtool.commands.bench import bench
from devtool.errors import DevtoolError
from devtool.records.run_file import parse_run, read_run
from tests.conftest import ROOT

MEASUREMENTS = ROOT / "docs/measurements.md"
SAMPLES = [4e-6, 1e-6, 3e-6, 9e-6, 2e-6, 5e-6, 7e-6]


def document(device: str = "NVIDIA X1", **layer) -> dict:
    rates = {
        name: {"per_second": rate, "measured": [rate], "what": "it"}
        for name, rate in (("copy", 1e12), ("matrix", 1e14))
    }
    return {
        "schema": 1,
        "rounds": 7,
        "date": "2026-11-24T12:00:00+00:00",
        "device": {"kind": "cuda", "name": device, "driver": "CUDA 13.0"},
        "versions": {"torch": "2.8.0"},
        "rates": rates,
        "sources": {"an_op": "digest"},
        "cases": [
            {
                "op": "an_op",
                "case": "bf16-8",
                "why": "as in a model",
                "bytes": 2_000_000,
                "operations": 0,
                "control": SAMPLES,
                "layers": [
                    {"name": "raw", "how": "a graph", "calls": 1, "seconds": SAMPLES, **layer},
                    {"name": "torch", "calls": 1, "seconds": [6e-6]},
                    {"name": "torch.compile", "skipped": "not installed"},
                ],
            }
        ],
    }


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr("devtool.bench.kept.folder", lambda: tmp_path / "docs/bench")
    monkeypatch.setattr(project, "root", lambda: tmp_path)
    return tmp_path


def test_the_tables_of_measurements_are_those_of_the_kept_runs(tmp_path):
    copy = tmp_path / "measurements.md"
    copy.write_text(MEASUREMENTS.read_text())
    write_tables(copy)
    assert copy.read_text() == MEASUREMENTS.read_text(), "devtool bench --table"


def test_measurements_are_short_and_show_every_kept_bench():
    text = MEASUREMENTS.read_text()
    assert len(text.splitlines()) <= 120
    cases = [case for run in read_kept() for case in run.cases]
    rows = {f"| {c.op} | {c.name} | " for c in cases}
    raw = [(c, la.name.removesuffix(" raw")) for c in cases for la in c.layers if la.name.endswith(" raw")]
    rows |= {f"| {c.op}.{implementation} | {c.name} | " for c, implementation in raw}
    assert len(rows) > 40 and len(raw) == 12
    assert [row for row in rows if row not in text] == []


def strings(value) -> list[str]:
    if isinstance(value, dict):
        return [s for item in value.values() for s in strings(item)]
    return [s for item in value for s in strings(item)] if isinstance(value, list) else [str(value)]


def test_kept_runs_name_no_path():
    for path in (ROOT / "docs/bench").glob("*/*.json"):
        assert [s for s in strings(json.loads(path.read_text())) if s.count("/") > 1] == [], path.name


def test_keep_has_the_median_and_spread_of_the_samples(kept):
    run = parse_run(document())
    (path,) = keep(run)
    assert path == kept / "docs/bench/nvidia-x1/an_op.json"
    (case,) = read_run("--load", path).cases
    raw = run.cases[0].layer("raw")
    assert len(case.layer("raw").seconds) == 5
    assert case.layer("raw").median == raw.median == statistics.median(SAMPLES)
    assert case.layer("raw").spread == pytest.approx(raw.spread, rel=1e-5)
    assert "as in a model" not in path.read_text() and "sources" not in path.read_text()


def test_table_has_time_share_baseline_and_command(kept):
    keep(parse_run(document()))
    target = kept / "page.md"
    target.write_text(f"before\n{BEGIN}\nold\n{END}\nbehind\n")
    write_tables(target)
    text = target.read_text()
    assert text.startswith("before\n") and text.endswith("behind\n") and "old" not in text
    assert "| an_op | bf16-8 | 4.00 us | 50% of copy |  | torch 6.00 us |" in text
    assert "`devtool bench an_op --device cuda --layer raw --layer peers --rounds 7`" in text
    write_tables(target)
    assert target.read_text() == text


def test_step_has_its_time_in_a_row(kept):
    """A graph of several ops has no raw call."""
    keep(parse_run(document(name="xla step")))
    target = kept / "page.md"
    target.write_text(f"{BEGIN}\n{END}\n")
    write_tables(target)
    assert "| an_op | bf16-8 |  | 50% of copy | 4.00 us | torch 6.00 us |" in target.read_text()


def test_a_run_with_wrong_numbers_is_not_kept(kept):
    run = parse_run(document(refused="an_op: expected 1, got 2"))
    with pytest.raises(DevtoolError, match="expected a run with right numbers, got wrong ones in an_op bf16-8"):
        keep(run)
    assert not (kept / "docs").exists()


def test_a_page_without_the_markers_is_not_written(kept):
    target = kept / "page.md"
    target.write_text("text\n")
    with pytest.raises(DevtoolError, match="got neither in page"):
        write_tables(target)
    assert target.read_text() == "text\n"


@pytest.mark.parametrize("words", [["rms_norm"], ["--list"], ["--layer", "raw"], ["--json", "x.json"]], ids=" ".join)
def test_table_measures_nothing(words):
    with pytest.raises(click.UsageError, match="--table measures nothing"):
        bench.main([*words, "--table"], standalone_mode=False)
