from __future__ import annotations

import click


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "json_file", metavar="FILE", help="Write the report to FILE as JSON; - is stdout")
@click.option("--ir", is_flag=True, help="Show the IR of each graph")
@click.option("--metrics", is_flag=True, help="Show torch_xla's counters and metrics")
@click.option(
    "--op-seconds",
    type=click.FloatRange(0),
    default=20,
    show_default=True,
    metavar="N",
    help="Record the time per op for N seconds of computing; 0: not at all",
)
@click.pass_context
def trace(
    ctx: click.Context,
    script: str,
    arguments: tuple[str, ...],
    json_file: str | None,
    ir: bool,
    metrics: bool,
    op_seconds: float,
) -> None:
    """Run a script and report what it does on XLA, and why

    \b
    Example: devtool trace script.py

    \b
    Compilations and what changed, executions, time per op, values read on the host, syncs, graph breaks,
    ops on the CPU, and advice with source lines. The report goes to stderr; the script's own
    output and exit status do not change.
    """
    from devtool.trace.script import trace_script

    ctx.exit(trace_script(script, arguments, json_file, ir=ir, metrics=metrics, op_seconds=op_seconds))
