"""Carries out `devtool bench`: measures or loads a run, then shows, saves and compares it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from devtool import project
from devtool.bench.compare import (
    check_cases,
    check_device,
    compare_layers,
    compare_runs,
    print_ratios,
    print_table,
    require_at_most,
    require_no_regression,
)
from devtool.bench.kept import keep, write_tables
from devtool.bench.measure import Selection, list_benches, measure, require_right_numbers
from devtool.bench.plot import check_plot, plot_run
from devtool.bench.table import print_run
from devtool.building.build import Options
from devtool.files import require_writable
from devtool.records.run_file import Run, read_run, write_run
from devtool.records.store import keep_bench


@dataclass(frozen=True)
class Files:
    """The files that the options name; None if an option is left out.

    Attributes:
        json: where to save the run.
        plot: where to write the picture.
        compare: a saved run to compare with.
        load: a saved run to show instead of a new one.
    """

    json: Path | None = None
    plot: Path | None = None
    compare: Path | None = None
    load: Path | None = None


def show_run(selection: Selection, options: Options, files: Files, noise: float, limit: float = 1.02) -> None:
    """Measures or loads a run and does with it what the options ask.

    Args:
        selection: what to measure.
        options: how to build.
        files: what to read and write.
        noise: the smallest change that counts in a comparison, as a fraction.
        limit: the largest ratio to what `selection.against` names.

    Raises:
        DevtoolError: a file that cannot be read or written, a failed measurement, wrong numbers, or a regression.
    """
    before = read_run("--compare", files.compare) if files.compare else None
    if files.json:
        require_writable("bench: --json", files.json)
    if files.plot:
        check_plot(files.plot)
    if files.load:
        run = read_run("--load", files.load)
    else:
        run = measure(selection, options, lambda about: check_device(before, about) if before else None)
        keep_bench(run)
    if files.json:
        write_run(files.json, run)
    print_run(run)
    if files.plot:
        plot_run(run, files.plot)
    require_right_numbers(run)
    if selection.against:
        ratios = compare_layers(run, selection.against)
        print_table(f"against {selection.against}, in the same run", ratios, digits=3)
        require_at_most(ratios, limit, selection.against)
    if before:
        asked = () if files.load else selection.ops or None
        _compare(before, run, noise, asked, selected=bool(selection.cases or selection.layers))


def show_benches(selection: Selection) -> None:
    """Prints op, name and reason of each bench."""
    for entry in list_benches(selection):
        click.echo(f"{entry['op']}\t{entry['case']}\t{entry['why']}")


def update_tables(added: Path | None) -> None:
    """Writes the tables of docs/measurements.md from docs/bench, after a run, if given, is added there."""
    if added:
        keep(read_run("--load", added))
    write_tables(project.root() / "docs/measurements.md")


def _compare(before: Run, run: Run, noise: float, ops: Sequence[str] | None, *, selected: bool) -> None:
    check_device(before, run.document["device"])
    check_cases(before, run, selected=selected, ops=ops)
    ratios = compare_runs(before, run, noise)
    print_ratios(ratios, before, run)
    require_no_regression(ratios)
