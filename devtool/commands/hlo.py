from __future__ import annotations

import click

from devtool.commands.build import cuda_option


@click.command()
@click.argument("op")
@click.option("--case", "case_name", metavar="NAME", help="A case of the op's cases.py  [default: the first]")
@click.option("--list", "list_cases", is_flag=True, help="List the cases and stop")
@cuda_option
def hlo(op: str, case_name: str | None, list_cases: bool, cuda: str) -> None:
    """Print the lowered HLO of one case of an op

    \b
    Example: devtool hlo rms_norm --case f32-5x1000
    """
    from devtool import project
    from devtool.building import Options, build_ops
    from devtool.lowered import load_cases, lowered_module, print_module, select_case

    project.select_ops("hlo", [op])
    if not list_cases:
        build_ops([op], Options(cuda))
    cases = load_cases(op)
    if list_cases:
        for case in cases:
            click.echo(f"{case.name}\t{case.why}")
        return
    print_module(lowered_module(op, select_case(op, cases, case_name)))
