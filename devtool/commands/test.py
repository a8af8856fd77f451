from __future__ import annotations

import click

from devtool.commands.build import HOST_SANITIZERS, complete_ops, cuda_option, device_option

# Tools of compute-sanitizer.
GPU_SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


class _PassesOn(click.Command):
    """Keeps what follows `--` for pytest; click would treat it as arguments of the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.obj = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@click.command(cls=_PassesOn, options_metavar="[OPTIONS]")
@click.argument("ops", metavar="[OP]... [-- PYTEST ARGUMENTS]", nargs=-1, shell_complete=complete_ops)
@device_option("XLA device of the op tests")
@click.option("--all", "everything", is_flag=True, help="Also the tests that are marked as slow")
@click.option(
    "-n", "--processes", type=click.IntRange(1), help="Default: 1; for all tests on a CPU one per core, up to 4"
)
@click.option("--raw", is_flag=True, help="Call the handlers through ctypes, without XLA; no other test")
@cuda_option
@click.option(
    "--sanitize",
    type=click.Choice([*HOST_SANITIZERS, *GPU_SANITIZERS]),
    help="Host code built with a sanitizer, or raw calls on CUDA under one of compute-sanitizer's tools",
)
@click.pass_context
def test(
    ctx: click.Context,
    ops: tuple[str, ...],
    device: str,
    everything: bool,
    processes: int | None,
    raw: bool,
    cuda: str,
    sanitize: str | None,
) -> None:
    """Build ops and run their tests; without OP, all tests

    \b
    Example: devtool test rms_norm --device cuda --sanitize memcheck
    """
    import os

    from devtool.building.build import Options
    from devtool.testing.run import run_tests

    # OpenMP's threads spin while they wait, which takes the cores from XLA's threads and from other processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    tool = sanitize if sanitize in GPU_SANITIZERS else None
    options = Options(cuda, None if tool else sanitize)
    status = run_tests(
        ops, device, options, ctx.obj, everything=everything, processes=processes, raw=raw, gpu_sanitizer=tool
    )
    ctx.exit(status)


@click.command(cls=_PassesOn, options_metavar="[OPTIONS]")
@click.argument("ops", metavar="OP... [-- PYTEST ARGUMENTS]", nargs=-1, required=True, shell_complete=complete_ops)
@device_option("XLA device of the op tests")
@cuda_option
@click.pass_context
def watch(ctx: click.Context, ops: tuple[str, ...], device: str, cuda: str) -> None:
    """Build and test ops again whenever a file is saved

    \b
    Example: devtool watch rms_norm -- -x

    \b
    A Python file needs no build. Ctrl-C ends it.
    """
    import os

    from devtool.building.build import Options
    from devtool.testing.watch import watch

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    watch(ops, device, Options(cuda), ctx.obj)
