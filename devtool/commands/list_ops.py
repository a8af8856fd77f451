from __future__ import annotations

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per op")
def list_ops(as_json: bool) -> None:
    """List the ops, their targets, and which are built

    \b
    Example: devtool list --json

    \b
    State: built; stale (the sources changed since); not built; corrupt (not a library of this op).
    """
    import json

    from devtool.building.inventory import inventory, print_inventory

    entries = inventory()
    if as_json:
        for entry in entries:
            click.echo(json.dumps(entry))
    else:
        print_inventory(entries)
