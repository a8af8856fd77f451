from __future__ import annotations

import click


@click.command()
@click.option("--upgrade", is_flag=True, help="Take newer versions where the lists allow them")
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if something would change")
def lock(upgrade: bool, check: bool) -> None:
    """Lock the wheels for pip and Nix; prints what changed

    \b
    Example: devtool lock --check

    \b
    Reads requirements/*.in, writes requirements/*.txt, and the file for Nix if pyproject.toml names one: all
    of them or none. Needs uv, and the package index that uv's settings name.
    """
    from devtool.locks.lock import lock

    changed = lock(upgrade=upgrade, check=check)
    for name in changed:
        click.echo(name)
    if not changed:
        click.echo("lock: nothing to change", err=True)
