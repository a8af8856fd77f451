from __future__ import annotations

from pathlib import Path

import click

from devtool.commands.build import complete_ops, cuda_option, device_option

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("ops", metavar="[OP]...", nargs=-1, shell_complete=complete_ops)
@device_option("What to measure on")
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
@click.option("--json", "json_file", metavar="FILE", type=_FILE, help="Save the run")
@click.option("--plot", "plot_file", metavar="FILE.png", type=_FILE, help="Draw a roofline and bars")
@click.option(
    "--compare", "compare_file", metavar="FILE", type=_FILE, help="Compare with a saved run; exit 1 if slower"
)
@click.option(
    "--noise",
    metavar="PERCENT",
    type=click.FloatRange(0, 1000),
    default=5.0,
    show_default=True,
    help="The smallest change that counts with --compare",
)
@click.option(
    "--against", metavar="REV|FLAGS", help="Time the ops of a git revision too, or built with more flags: -DkWarps=4"
)
@click.option(
    "--fail-above",
    metavar="RATIO",
    type=click.FloatRange(0, min_open=True),
    default=1.02,
    show_default=True,
    help="Exit 1 if --against is beaten by more",
)
@click.option("--load", "load_file", metavar="FILE", type=_FILE, help="Show a saved run, measure nothing")
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
    against: str | None,
    fail_above: float,
    load_file: Path | None,
    table: bool,
    list_cases: bool,
    cuda: str,
) -> None:
    """Check ops, then time them against XLA and baselines

    \b
    Example: devtool bench rms_norm --device cpu --json run.json

    \b
    A kernel with wrong numbers is not timed: exit status 1.
    """
    from devtool.bench.measure import Selection
    from devtool.bench.session import Files, show_benches, show_run, update_tables
    from devtool.building.build import Options

    selected = bool(ops or cases or layers or list_cases or against)
    if load_file and selected:
        raise click.UsageError("--load shows a whole run: leave out OP, --case, --layer, --list and --against")
    if table and (selected or json_file or plot_file or compare_file):
        raise click.UsageError("--table measures nothing: give it no OP and no option but --load")
    selection = Selection(ops, cases, layers, device, rounds, against)
    if table:
        update_tables(load_file)
    elif list_cases:
        show_benches(selection)
    else:
        show_run(
            selection, Options(cuda), Files(json_file, plot_file, compare_file, load_file), noise / 100, fail_above
        )


@click.command()
@click.argument("op", required=False, shell_complete=complete_ops)
@click.option("--case", metavar="NAME", help="A bench or a case of the op's cases.py  [default: the first]")
@click.option("--kernel", metavar="TEXT", default="", help="Only kernels with this in their names")
@click.option("--static", is_flag=True, help="Read the machine code, call nothing")
@click.option("--as-built", is_flag=True, help="Take the library in build/lib; it has no source lines")
@click.option("--json", "json_file", metavar="FILE", type=_FILE, help="Save the profile")
@click.option("--compare", "compare_file", metavar="FILE", type=_FILE, help="Compare with a saved profile")
@click.option("--load", "load_file", metavar="FILE", type=_FILE, help="Show a saved profile, call nothing")
@click.option("--list", "list_cases", is_flag=True, help="List the benches and cases and stop")
@cuda_option
def profile(
    op: str | None,
    case: str | None,
    kernel: str,
    static: bool,
    as_built: bool,
    json_file: Path | None,
    compare_file: Path | None,
    load_file: Path | None,
    list_cases: bool,
    cuda: str,
) -> None:
    """Show what a call of an op does with the GPU

    \b
    Example: devtool profile rms_norm --json run.json

    \b
    Runs Nsight Compute over one raw call: occupancy, stalls, memory and the hottest lines of the
    source. Without a GPU or ncu it shows what the machine code says.
    """
    from devtool.building.build import Options
    from devtool.profile.session import Files, Selection, show_cases, show_profile

    if load_file and (op or case or kernel or static or as_built or list_cases):
        raise click.UsageError("--load shows a whole profile: leave out OP and what selects")
    if not load_file and not op:
        raise click.UsageError("Missing argument 'OP'.")
    selection = Selection(op, case, kernel, static, as_built) if op else None
    if list_cases:
        show_cases(selection)
    else:
        show_profile(selection, Options(cuda), Files(json_file, compare_file, load_file))


@click.command()
@click.argument("op", metavar="OP", shell_complete=complete_ops)
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 if another variant is faster")
@click.option("--start", "only_start", is_flag=True, help="Write the table that tuning.py starts with, unmeasured")
@click.option(
    "--rounds", metavar="N", type=click.IntRange(1), default=40, show_default=True, help="Samples of each variant"
)
@click.option(
    "--noise",
    metavar="PERCENT",
    type=click.FloatRange(0, 1000),
    default=2.0,
    show_default=True,
    help="The smallest gain that changes the table",
)
@click.option("--json", "json_file", metavar="FILE", type=_FILE, help="Save all samples")
def tune(op: str, only_check: bool, only_start: bool, rounds: int, noise: float, json_file: Path | None) -> None:
    """Choose the fastest parameters of a kernel per shape

    \b
    Example: devtool tune rms_norm

    \b
    The op's tuning.py declares them. Builds all variants, checks their numbers,
    times them side by side, and writes tuning.h and tuning.json beside it.
    """
    from devtool.tune.session import Request, check, tune, write_start

    if only_start and (only_check or json_file):
        raise click.UsageError("--start measures nothing: leave out --check and --json")
    if only_start:
        write_start(op)
    elif only_check:
        check(Request(op, rounds, noise / 100, json_file))
    else:
        tune(Request(op, rounds, noise / 100, json_file))
