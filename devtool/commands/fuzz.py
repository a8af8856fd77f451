from __future__ import annotations

import click

from devtool.commands.build import complete_ops, device_option


@click.command(options_metavar="[OPTIONS]")
@click.argument("ops", metavar="[OP]...", nargs=-1, shell_complete=complete_ops)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="For each op [60, unless --calls is given]")
@click.option("--calls", type=click.IntRange(1), help="For each op")
@device_option("Where the handlers run")
@click.option("--sanitize", is_flag=True, help="Address and undefined behaviour on the CPU, memcheck on CUDA")
@click.option(
    "-n", "--processes", type=click.IntRange(1), default=1, show_default=True, help="These share an op's calls"
)
@click.option("--seed", default=0, show_default=True, help="Of all choices: the same inputs again")
@click.pass_context
def fuzz(
    ctx: click.Context,
    ops: tuple[str, ...],
    seconds: float | None,
    calls: int | None,
    device: str,
    sanitize: bool,
    processes: int,
    seed: int,
) -> None:
    """Call ops with random inputs; without OP, all ops

    \b
    Example: devtool fuzz rms_norm --calls 10000 --sanitize

    \b
    A valid input must give the reference's numbers, an invalid one an error.
    Exit status 1 if one did not: it is made small and printed as a case for
    cases.py, and tried first in the next call.
    """
    from devtool.testing.fuzz import Limits, fuzz

    limits = Limits(calls, 60.0 if seconds is None and calls is None else seconds)
    ctx.exit(0 if fuzz(ops, limits, device, seed, processes=processes, sanitize=sanitize) else 1)
