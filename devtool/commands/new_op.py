from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

# Route -> the step for the GPU, and the file to edit.
_STEPS = {
    "cuda": ("Compute it on the GPU:", "{0}.cu"),
    "triton": ("Compute it on the GPU:", "triton_kernels.py"),
    "wrap": ("Call it on the GPU:", "{0}.cu"),
}


@click.command("new-op")
@click.argument("name")
@click.argument("schema", required=False)
@click.option(
    "--route", type=click.Choice(list(_STEPS)), default="cuda", show_default=True, help="What computes on the GPU"
)
@click.option("--library", metavar="FILE", help="wrap: the library (.so) or header")
@click.option("--symbol", "symbols", metavar="NAME", multiple=True, help="wrap: a function to call; may be repeated")
@click.option("--version", help="wrap: the library's version")
@click.option("--licence", metavar="SPDX", help="wrap: the library's licence")
@click.option("--implementation", metavar="WORD", help="Name of another implementation of the op  [default: ROUTE]")
@click.option("--dry-run", is_flag=True, help="Print the files and write nothing")
@click.pass_context
def new_op(
    context: click.Context,
    name: str,
    schema: str | None,
    route: str,
    library: str | None,
    symbols: tuple[str, ...],
    version: str | None,
    licence: str | None,
    implementation: str | None,
    dry_run: bool,
) -> None:
    """Write the folder of a new op, ready to build and test

    \b
    Example: devtool new-op scaled_add "(Tensor x, Tensor y, float scale=1.0) -> Tensor"

    \b
    SCHEMA has the form of torch.library. Arguments: Tensor, Tensor?, Tensor(a!) (updated in place),
    int, int?, float, float?, bool, str, int[], float[]. Results: Tensor, (Tensor weights, Tensor ids), ().

    \b
    For an op that exists, --route triton or --route cuda adds an implementation of it, without SCHEMA.
    """
    from devtool.errors import MISUSED, DevtoolError, unknown
    from devtool.project import op_names
    from devtool.scaffold import op_folder
    from devtool.scaffold.implementation import implementation_of, is_op
    from devtool.scaffold.schema import DEFAULT_SCHEMA, parse_schema
    from devtool.scaffold.stub import Op
    from devtool.scaffold.wrapped import read_wrapped, refuse_options

    is_route_given = context.get_parameter_source("route") == click.core.ParameterSource.COMMANDLINE
    options = {"library": library, "symbol": symbols, "version": version, "licence": licence}
    if (is_route_given or implementation) and is_op(name):
        if schema is not None:
            message = f"new-op: SCHEMA: expected none, as {name} has one, got {schema!r}"
            raise DevtoolError(message, f"devtool new-op {name} --route {route}", MISUSED)
        if route != "wrap":
            refuse_options(route, **options)
        _write(implementation_of(name, implementation or route, route), dry_run, _implementation_steps)
        return
    if implementation:
        hint = f"devtool new-op {name} writes an op"
        raise unknown("new-op", "NAME", "an op with --implementation", name, list(filter(is_op, op_names())), hint)
    op_folder.check_name(name)
    parsed = parse_schema(schema or DEFAULT_SCHEMA)
    op_folder.check_route(route, parsed)
    if route == "wrap":
        wrapped = read_wrapped(library, symbols, version, licence)
    else:
        wrapped = None
        refuse_options(route, **options)
    _write(Op(name, parsed, route, wrapped), dry_run, _op_steps)


def _write(op: Any, dry_run: bool, steps: Callable[[Any, Path], str]) -> None:
    from devtool import project
    from devtool.scaffold import op_folder

    if dry_run:
        with op_folder.rendered(op, beside=None) as folder:
            for path in _files(folder):
                text = f"({path.stat().st_size} bytes)\n" if path.parent.name == "vendor" else path.read_text()
                click.echo(f"==> kernels/{op.name}/{path.relative_to(folder)} <==\n{text}")
        return
    folder = op_folder.write_op(op).relative_to(project.root())
    for path in _files(project.root() / folder):
        click.echo(path.relative_to(project.root()))
    click.echo(f"\nnew-op: wrote {folder}, {steps(op, folder)}", err=True)


def _op_steps(op: Any, folder: Path) -> str:
    gpu, gpu_file = _STEPS[op.route]
    host = "Call it on the host:" if op.wrapped else "Compute it on the host:"
    name = op.name
    return f"""a stub that builds and passes. The lines to replace are marked `replace:`.
  1. See it pass:                    devtool test {name}
  2. Say what the op means:          {folder}/{name}.py (reference and checks)
  3. Write down formula and shapes:  {folder}/{name}.h
  4. {host:<32}{folder}/{name}_host.cc
  5. {gpu:<32}{folder}/{gpu_file.format(name)}
  6. Check the same in C++:          {folder}/{name}_ffi.cc
  7. Choose sizes and bad inputs:    {folder}/cases.py
  8. See it pass again:              devtool test {name}
  9. See how fast it is:             devtool bench {name}"""


def _implementation_steps(op: Any, folder: Path) -> str:
    kernel = f"{folder}/{'triton_kernels.py' if op.route.startswith('triton') else f'{op.name}.cu'}"
    launch = f"{folder}/{op.name}{'_launch.cc' if op.route.startswith('triton') else '.cu'}"
    begins = "It begins as a copy of the op's CUDA code." if op.copies else "Its kernel is yet to be written."
    return f"""implementation {op.implementation} of {op.op}. {begins}
  1. See it pass on the CPU:         devtool test {op.op}
  2. Compute it on the GPU:          {kernel}
  3. Launch it:                      {launch}
  4. Say what it does not take:      {folder}/{op.name}.py (register_check)
  5. See it pass on a GPU:           devtool test {op.op} --device cuda
  6. Compare how fast it is:         devtool bench {op.op}"""


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
