from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

HOST_SANITIZERS = ("address", "undefined")


def device_option(what: str) -> Callable:
    """--device, with what it chooses."""
    return click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help=f"{what}; auto takes CUDA where there is one",
    )


cuda_option = click.option(
    "--cuda",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    envvar="PYXLA_CUDA",
    show_default=True,
    show_envvar=True,
    help="CUDA code: auto builds it where nvcc is found",
)


def complete_ops(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The ops that begin like this, for a shell."""
    from devtool import project
    from devtool.errors import DevtoolError

    try:
        return [name for name in project.op_names() if name.startswith(begun)]
    except DevtoolError:
        return []


@click.command()
@click.argument("ops", metavar="[OP]...", nargs=-1, shell_complete=complete_ops)
@click.option("--clean", is_flag=True, help="Build from scratch")
@click.option("--configure-only", is_flag=True, help="Write compile_commands.json, compile nothing")
@cuda_option
@click.option(
    "--sanitize", type=click.Choice(HOST_SANITIZERS), help="Host code under a sanitizer, in folders of its own"
)
def build(ops: tuple[str, ...], clean: bool, configure_only: bool, cuda: str, sanitize: str | None) -> None:
    """Build op libraries; prints their paths

    \b
    Example: devtool build rms_norm
    """
    from devtool import project
    from devtool.building.build import Options, build_ops, configure

    if configure_only:
        click.echo(configure(Options(cuda, sanitize)))
        return
    for path in build_ops(project.select_ops("build", ops), Options(cuda, sanitize), clean=clean):
        click.echo(path)


@click.command()
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default="dist", show_default=True, help="Its folder"
)
@click.option("--check", is_flag=True, help="Install it into a clean environment first and run its tests there")
@cuda_option
def wheel(output: Path, check: bool, cuda: str) -> None:
    """Make the wheel of the repository's kernels; prints its path

    \b
    Example: devtool wheel

    \b
    It contains the built libraries, their manifests and the Python files of kernels/ without the tests.

    \b
    --check: the environment has the packages of this one, and not the repository. If a test fails, there is no wheel.
    """
    from devtool.building.build import Options
    from devtool.release.wheel import make_wheel
    from devtool.release.wheel_check import check_wheel

    click.echo(make_wheel(output, Options(cuda, None), check=check_wheel if check else None))


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per library")
def verify(paths: tuple[str, ...], as_json: bool) -> None:
    """Compare libraries with their manifests and sources

    \b
    Example: devtool verify build/lib

    \b
    PATH is a library, a folder of libraries, a wheel (.whl) or a release tarball (.tar.gz).
    """
    import json

    from devtool.release.verify import print_differences, print_reports
    from devtool.release.verify import verify as examine

    reports = examine(paths)
    if as_json:
        for report in reports:
            click.echo(json.dumps(report.as_json()))
    else:
        print_reports(reports)
    print_differences(reports)
