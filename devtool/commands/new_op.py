from __future__ import annotations

import click

DEFAULT_SCHEMA = "(Tensor x, float scale=1.0) -> Tensor"


@click.command("new-op")
@click.argument("name")
@click.argument("schema", default=DEFAULT_SCHEMA)
@click.option("--dry-run", is_flag=True, help="Print the files and write nothing")
def new_op(name: str, schema: str, dry_run: bool) -> None:
    """Write the folder of a new op, ready to build and test

    \b
    Example: devtool new-op scaled_add "(Tensor x, Tensor y, float scale=1.0) -> Tensor"

    \b
    SCHEMA is what torch.library writes. Arguments: Tensor, Tensor?, Tensor(a!) (updated in place),
    int, int?, float, float?, bool, str, int[], float[]. Results: Tensor, (Tensor, Tensor), ().
    """
    from devtool import project, scaffold
    from devtool.schema import parse_schema
    from devtool.stub import Op

    scaffold.check_name(name)
    op = Op(name, parse_schema(schema))
    if dry_run:
        with scaffold.rendered(op, beside=None) as folder:
            for path in sorted(folder.iterdir()):
                click.echo(f"==> kernels/{name}/{path.name} <==\n{path.read_text()}")
        return
    folder = scaffold.write_op(op).relative_to(project.root())
    for path in sorted((project.root() / folder).iterdir()):
        click.echo(folder / path.name)
    click.echo(
        f"""
new-op: wrote {folder}, a stub that builds and passes. The lines to replace are marked `replace:`.
  1. See it pass:                    devtool test {name}
  2. Say what the op means:          {folder}/{name}.py (reference and checks)
  3. Write down formula and shapes:  {folder}/{name}.h
  4. Compute it on the host:         {folder}/{name}_host.cc
  5. Compute it on the GPU:          {folder}/{name}.cu
  6. Check the same in C++:          {folder}/{name}_ffi.cc
  7. Choose sizes and bad inputs:    {folder}/cases.py
  8. See it pass again:              devtool test {name}""",
        err=True,
    )
