from __future__ import annotations

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check what ops need from this machine; say what fixes it

    \b
    Example: devtool doctor

    \b
    Status: ok; failed; skipped (it needs a check that failed, or a GPU). Exit status 1 if one failed.
    """
    import dataclasses
    import json

    from devtool.doctor.checks import FAILED, Doctor, print_lines

    lines = Doctor().examine()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
    else:
        print_lines(lines)
    ctx.exit(any(line.status == FAILED for line in lines))
