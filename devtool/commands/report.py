from __future__ import annotations

from pathlib import Path

import click

from devtool.commands.build import complete_ops


@click.command()
@click.argument("ops", metavar="[OP]...", nargs=-1, shell_complete=complete_ops)
@click.option(
    "--output", metavar="FILE", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The page to write"
)
def report(ops: tuple[str, ...], output: Path) -> None:
    """Write a page about ops: tests, accuracy, speed, HLO, SASS

    \b
    Example: devtool report rms_norm --output report.html

    \b
    Shows the last records of devtool test and devtool bench, and runs neither; the page says
    which records are missing or older than the op's sources. Without OP, all ops.
    """
    from devtool.report.page import write_report

    write_report(ops, output)
