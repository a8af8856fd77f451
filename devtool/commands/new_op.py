from __future__ import annotations

from pathlib import Path

import click

DEFAULT_SCHEMA = "(Tensor x, float scale=1.0) -> Tensor"
# Route -> what is edited for the GPU, and what more there is.
_STEPS = {
    "cuda": ("Compute it on the GPU:", "{0}.cu"),
    "triton": ("Compute it on the GPU:", "triton_kernels.py"),
    "wrap": ("Call it on the GPU, or there:", "{0}.cu"),
}


@click.command("new-op")
@click.argument("name")
@click.argument("schema", default=DEFAULT_SCHEMA)
@click.option(
    "--route", type=click.Choice(list(_STEPS)), default="cuda", show_default=True, help="What computes on the GPU"
)
@click.option("--library", metavar="FILE", help="wrap: the library (.so) or header")
@click.option("--symbol", "symbols", metavar="NAME", multiple=True, help="wrap: what is called; may be repeated")
@click.option("--version", help="wrap: the library's version")
@click.option("--licence", metavar="SPDX", help="wrap: the library's licence")
@click.option("--dry-run", is_flag=True, help="Print the files and write nothing")
def new_op(
    name: str,
    schema: str,
    route: str,
    library: str | None,
    symbols: tuple[str, ...],
    version: str | None,
    licence: str | None,
    dry_run: bool,
) -> None:
    """Write the folder of a new op, ready to build and test

    \b
    Example: devtool new-op scaled_add "(Tensor x, Tensor y, float scale=1.0) -> Tensor"

    \b
    SCHEMA is what torch.library writes. Arguments: Tensor, Tensor?, Tensor(a!) (updated in place),
    int, int?, float, float?, bool, str, int[], float[]. Results: Tensor, (Tensor, Tensor), ().
    """
    from devtool import project
    from devtool.scaffold import op_folder
    from devtool.scaffold.schema import parse_schema
    from devtool.scaffold.stub import Op
    from devtool.scaffold.wrapped import read_wrapped, refuse_options

    op_folder.check_name(name)
    parsed = parse_schema(schema)
    op_folder.check_route(route, parsed)
    if route == "wrap":
        wrapped = read_wrapped(library, symbols, version, licence)
    else:
        wrapped = None
        refuse_options(route, library=library, symbol=symbols, version=version, licence=licence)
    op = Op(name, parsed, route, wrapped)
    if dry_run:
        with op_folder.rendered(op, beside=None) as folder:
            for path in _files(folder):
                text = f"({path.stat().st_size} bytes)\n" if path.parent.name == "vendor" else path.read_text()
                click.echo(f"==> kernels/{name}/{path.relative_to(folder)} <==\n{text}")
        return
    folder = op_folder.write_op(op).relative_to(project.root())
    for path in _files(project.root() / folder):
        click.echo(path.relative_to(project.root()))
    gpu, gpu_file = _STEPS[route]
    host = "Call it on the host:" if wrapped else "Compute it on the host:"
    click.echo(
        f"""
new-op: wrote {folder}, a stub that builds and passes. The lines to replace are marked `replace:`.
  1. See it pass:                    devtool test {name}
  2. Say what the op means:          {folder}/{name}.py (reference and checks)
  3. Write down formula and shapes:  {folder}/{name}.h
  4. {host:<32}{folder}/{name}_host.cc
  5. {gpu:<32}{folder}/{gpu_file.format(name)}
  6. Check the same in C++:          {folder}/{name}_ffi.cc
  7. Choose sizes and bad inputs:    {folder}/cases.py
  8. See it pass again:              devtool test {name}
  9. See how fast it is:             devtool bench {name}""",
        err=True,
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
