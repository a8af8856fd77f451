from __future__ import annotations

import click


@click.command("list")
@click.argument("ops", metavar="[OP]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per op")
def list_ops(ops: tuple[str, ...], as_json: bool) -> None:
    """List the ops, their targets, and which are built

    \b
    Example: devtool list rms_norm

    \b
    With OP (a folder, or an op such as rms_norm.triton): its schema, cases, library and files,
    and those of its implementations.

    \b
    State: built; stale (the sources changed since); not built; corrupt (not a library of this op);
    unsupported (too old or too new for this pyxla).
    """
    import json

    from devtool.building.inventory import inventory, print_inventory

    if ops:
        from devtool.building.op_details import detailed, print_details
        from devtool.project import folder_of, select_ops, with_implementations

        entries = detailed(with_implementations(select_ops("list", list(map(folder_of, ops)))))
    else:
        entries = inventory(schemas=as_json)
    if as_json:
        for entry in entries:
            click.echo(json.dumps(entry))
    elif ops:
        print_details(entries)
    else:
        print_inventory(entries)
