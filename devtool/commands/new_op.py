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
@click.option("--from", "origin", metavar="WHAT", help="FILE.cu, FILE.py or MODULE:FUNCTION to make the op from")
@click.option("--library", metavar="FILE", help="wrap: the library (.so) or header")
@click.option(
    "--symbol",
    "symbols",
    metavar="NAME",
    multiple=True,
    help="wrap: a function to call, repeatable; --from: the one to take",
)
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
    origin: str | None,
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
    --from makes the op from code: the launch function or kernel of FILE.cu, the @triton.jit kernel of FILE.py,
    or a Python function with type hints, whose body becomes the reference. SCHEMA, if given, wins.

    \b
    For an op that exists, --route triton or --route cuda adds an implementation of it, without SCHEMA.
    """
    from devtool.errors import MISUSED, DevtoolError, unknown
    from devtool.project import op_names
    from devtool.scaffold import op_folder
    from devtool.scaffold.implementation import implementation_of, is_op
    from devtool.scaffold.origin.read import form_of, read_origin, route_of
    from devtool.scaffold.schema import DEFAULT_SCHEMA, parse_schema
    from devtool.scaffold.stub import Op
    from devtool.scaffold.wrapped import read_wrapped, refuse_options

    is_route_given = context.get_parameter_source("route") == click.core.ParameterSource.COMMANDLINE
    options = {"library": library, "symbol": symbols, "version": version, "licence": licence}
    if origin and (implementation or is_op(name)):
        what = "--implementation" if implementation else f"{name}, which exists"
        hint = f"devtool new-op {name}_from --from {origin}, or --route {route} without --from for an implementation"
        raise DevtoolError(f"new-op: --from: expected a new op, got {what}", hint, MISUSED)
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
    parsed = parse_schema(schema) if schema else None
    if origin:
        route = route_of(origin, route if is_route_given else None)
        if form_of(origin) != "function":
            # It chooses from the file.
            options["symbol"] = ()
    if route != "wrap":
        refuse_options(route, **options)
    found = read_origin(origin, name, symbols, parsed) if origin else None
    parsed = found.schema if found else parsed or parse_schema(DEFAULT_SCHEMA)
    op_folder.check_route(route, parsed)
    wrapped = read_wrapped(library, symbols, version, licence) if route == "wrap" else None
    _write(Op(name, parsed, route, wrapped, found), dry_run, _op_steps)


def _write(op: Any, dry_run: bool, steps: Callable[[Any, Path], str]) -> None:
    from devtool import project
    from devtool.scaffold import op_folder
    from devtool.testing.untested import stub_lines

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
    if getattr(op, "origin", None):
        click.echo("\n" + "\n".join(stub_lines([op.name])), err=True)


def _op_steps(op: Any, folder: Path) -> str:
    gpu, gpu_file = _STEPS[op.route]
    host = "Call it on the host:" if op.wrapped else "Compute it on the host:"
    name = op.name
    begins, first, means = "a stub that builds and passes. ", "See it pass:", "Say what the op means:"
    if op.origin:
        begins, first = f"from {op.origin.what}.\n{op.origin.outcome}\n", "See what the test shows:"
        if op.origin.bindings:
            gpu = "Launch it on the GPU:"
            gpu_file = {"cuda": "{0}.cu", "triton": "triton_kernels.py and {0}_launch.cc"}[op.route]
        else:
            means = "Read the reference again:"
    return f"""{begins}The lines to replace are marked `replace:`.
  1. {first:<32}devtool test {name}
  2. {means:<32}{folder}/{name}.py (reference and checks)
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
