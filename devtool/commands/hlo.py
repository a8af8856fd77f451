from __future__ import annotations

from pathlib import Path

import click

from devtool.commands.build import cuda_option
from devtool.hlo.output import GPUS, STAGES


@click.command(context_settings={"allow_interspersed_args": True})
@click.argument("target", metavar="OP|SCRIPT")
@click.argument("arguments", metavar="[-- ARGUMENTS OF SCRIPT]", nargs=-1)
@click.option("--case", "case_name", metavar="NAME", help="A case of the op's cases.py  [default: the first not empty]")
@click.option("--list", "list_cases", is_flag=True, help="List the cases and stop")
@click.option("--stage", type=click.Choice(STAGES), help="Print the modules at one stage, nothing else")
@click.option("--diff", is_flag=True, help="Print what XLA's optimisation changed")
@click.option("--json", "as_json", is_flag=True, help="Print all that is known as one JSON object")
@click.option("--graph", type=click.Path(path_type=Path), metavar="FILE", help="Write the optimised modules as SVG")
@click.option(
    "--gpu", type=click.Choice(GPUS), help="Show what XLA:CUDA makes of it for this GPU, which need not be here"
)
@cuda_option
def hlo(
    target: str,
    arguments: tuple[str, ...],
    case_name: str | None,
    list_cases: bool,
    stage: str | None,
    diff: bool,
    as_json: bool,
    graph: Path | None,
    gpu: str | None,
    cuda: str,
) -> None:
    """Show what XLA makes of an op or a script

    \b
    Example: devtool hlo rms_norm --case f32-5x1000

    \b
    Prints the custom calls that XLA runs, what is fused next to them, the copies that XLA adds and
    why, and the memory plan; for an op also the module that XLA gets. Needs no XLA_FLAGS.
    """
    from devtool import project
    from devtool.building.build import Options, build_ops
    from devtool.files import require_writable
    from devtool.hlo import output
    from devtool.hlo.lowered import compile_for, inspect_case, inspect_script, load_cases, select_case

    if sum([stage is not None, diff, as_json]) > 1:
        raise click.UsageError("--stage, --diff and --json exclude each other")
    if graph:
        require_writable("hlo: --graph", graph)
    if target.endswith(".py") or "/" in target:
        if case_name or list_cases:
            raise click.UsageError("a script has no cases")
        text, seen = None, inspect_script(Path(target), arguments)
    else:
        if arguments:
            raise click.UsageError(f"unexpected extra argument ({arguments[0]}): an op takes none")
        folder = project.folder_of(target)
        project.select_ops("hlo", [folder])
        if not list_cases:
            build_ops([folder], Options(cuda))
        # An implementation may also be named by its folder.
        target = project.op_of_folder(folder) if folder in project.implementations() else target
        cases = load_cases(target)
        if list_cases:
            for case in cases:
                click.echo(f"{case.name}\t{case.why}")
            return
        text, seen = inspect_case(target, select_case(target, cases, case_name))
    if gpu:
        seen = compile_for(seen, gpu)
    if graph:
        output.write_graph(seen, graph, stage or "after")
    if as_json:
        output.print_json(seen)
    elif diff:
        output.print_diff(seen)
    elif stage:
        output.print_stage(seen, stage)
    elif not graph:
        output.print_report(text, seen)
    output.print_calls([call.target for call in seen.calls()])
