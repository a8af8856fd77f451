from __future__ import annotations

import click

from devtool.commands.build import cuda_option, sanitize_option


class _PassesOn(click.Command):
    """Keeps what follows `--` for pytest; click would take it for further arguments of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.obj = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@click.command(cls=_PassesOn, options_metavar="[OPTIONS]")
@click.argument("ops", metavar="[OP]... [-- PYTEST ARGUMENTS]", nargs=-1)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="XLA device of the op tests; auto takes CUDA where there is one",
)
@cuda_option
@sanitize_option
@click.pass_context
def test(ctx: click.Context, ops: tuple[str, ...], device: str, cuda: str, sanitize: str | None) -> None:
    """Build ops and run their tests; without OP, all tests

    \b
    Example: devtool test rms_norm --sanitize address -- -k f32
    """
    from devtool.building import Options
    from devtool.testing import run_tests

    ctx.exit(run_tests(ops, device, Options(cuda, sanitize), ctx.obj))
