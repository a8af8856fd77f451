from __future__ import annotations

from pathlib import Path

import click

from devtool.commands.build import cuda_option

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("ops", metavar="[OP]...", nargs=-1)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What to measure on; auto takes CUDA where there is one",
)
@click.option("--case", "cases", metavar="NAME", multiple=True, help="A bench of the op's cases.py; may be repeated")
@click.option(
    "--layer",
    "layers",
    type=click.Choice(["raw", "xla", "peers"]),
    multiple=True,
    help="Time only this; may be repeated",
)
@click.option(
    "--rounds", metavar="N", type=click.IntRange(1), default=50, show_default=True, help="Samples of each layer"
)
@click.option("--json", "json_file", metavar="FILE", type=_FILE, help="Keep the run")
@click.option("--plot", "plot_file", metavar="FILE.png", type=_FILE, help="Draw a roofline and bars")
@click.option("--compare", "compare_file", metavar="FILE", type=_FILE, help="Compare with a kept run; exit 1 if slower")
@click.option(
    "--noise",
    metavar="PERCENT",
    type=click.FloatRange(0, 1000),
    default=5.0,
    show_default=True,
    help="The smallest change that counts with --compare",
)
@click.option("--load", "load_file", metavar="FILE", type=_FILE, help="Show a kept run, measure nothing")
@click.option("--table", is_flag=True, help="Write docs/measurements.md from docs/bench; --load adds a run")
@click.option("--list", "list_cases", is_flag=True, help="List the benches and stop")
@cuda_option
def bench(
    ops: tuple[str, ...],
    device: str,
    cases: tuple[str, ...],
    layers: tuple[str, ...],
    rounds: int,
    json_file: Path | None,
    plot_file: Path | None,
    compare_file: Path | None,
    noise: float,
    load_file: Path | None,
    table: bool,
    list_cases: bool,
    cuda: str,
) -> None:
    """Check ops, then time them beside XLA and their peers

    \b
    Example: devtool bench rms_norm --device cpu --json run.json

    \b
    A kernel with wrong numbers is not timed: exit status 1.
    """
    from devtool.bench.compare import check_cases, check_device, compare_runs, print_ratios, require_no_regression
    from devtool.bench.kept import keep, write_tables
    from devtool.bench.measure import Selection, list_benches, measure, require_right_numbers
    from devtool.bench.plot import check_plot, plot_run
    from devtool.bench.table import print_run
    from devtool.building.build import Options
    from devtool.files import require_writable
    from devtool.project import root
    from devtool.records.run_file import read_run, write_run
    from devtool.records.store import keep_bench

    if load_file and (ops or cases or layers or list_cases):
        raise click.UsageError("--load shows a whole run: leave out OP, --case, --layer and --list")
    if table and (ops or cases or layers or list_cases or json_file or plot_file or compare_file):
        raise click.UsageError("--table measures nothing: give it no OP and no option but --load")
    if table:
        if load_file:
            keep(read_run("--load", load_file))
        write_tables(root() / "docs/measurements.md")
        return
    selection = Selection(ops, cases, layers, device, rounds)
    if list_cases:
        for entry in list_benches(selection):
            click.echo(f"{entry['op']}\t{entry['case']}\t{entry['why']}")
        return
    before = read_run("--compare", compare_file) if compare_file else None
    if json_file:
        require_writable("bench: --json", json_file)
    if plot_file:
        check_plot(plot_file)
    if load_file:
        run = read_run("--load", load_file)
    else:
        run = measure(selection, Options(cuda), lambda about: check_device(before, about) if before else None)
        keep_bench(run)
    if json_file:
        write_run(json_file, run)
    print_run(run)
    if plot_file:
        plot_run(run, plot_file)
    require_right_numbers(run)
    if before:
        check_device(before, run.document["device"])
        check_cases(before, run, selected=bool(cases or layers))
        ratios = compare_runs(before, run, noise / 100)
        print_ratios(ratios, before, run)
        require_no_regression(ratios)
