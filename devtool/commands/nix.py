from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--nixpkgs",
    type=click.Choice(["auto", "pinned", "host"]),
    default="auto",
    envvar="PYXLA_NIXPKGS",
    show_default=True,
    show_envvar=True,
    help="auto: the pinned one, else nix/host",
)
@click.argument("arguments", metavar="COMMAND [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def nix(nixpkgs: str, arguments: tuple[str, ...]) -> None:
    """Run Nix on the flake, with nixpkgs or its stand-in

    \b
    Example: devtool nix build .#rms_norm

    \b
    COMMAND and ARGS are those of Nix: build, develop, run, fmt, flake, ...; check is short for
    flake check. Says which nixpkgs it takes: the pinned one, or nix/host, this machine's tools.
    """
    from devtool.release.nix import run_nix

    run_nix(arguments, nixpkgs)
