from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--nixpkgs",
    metavar="REF",
    default="auto",
    envvar="PYXLA_NIXPKGS",
    show_default=True,
    show_envvar=True,
    help="pinned, host, a flake reference, or auto: the pinned one, else nix/host",
)
@click.argument("arguments", metavar="COMMAND [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def nix(nixpkgs: str, arguments: tuple[str, ...]) -> None:
    """Run Nix on the flake, with nixpkgs or its stand-in

    \b
    Example: devtool nix build .#rms_norm

    \b
    COMMAND and ARGS are those of Nix: build, develop, run, fmt, flake, ...; check is short for
    flake check. Says which nixpkgs it takes: the pinned one, nix/host, which is made of this
    machine's tools, or one that --nixpkgs names: github:NixOS/nixpkgs/nixos-25.11, path:/src/nixpkgs.
    A release is made with the pinned one, unless --nixpkgs names another.
    """
    from devtool.release.nix import run_nix

    run_nix(arguments, nixpkgs)
