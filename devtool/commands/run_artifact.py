from __future__ import annotations

from pathlib import Path

import click

from devtool.commands.build import device_option


@click.command("run-artifact")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--input", "input_path", type=click.Path(path_type=Path), metavar="FILE.npz", help="The inputs, by name")
@click.option("--random", "seed", type=int, metavar="SEED", help="Random inputs from this seed  [default: 0]")
@click.option(
    "--output", "output_path", type=click.Path(path_type=Path), metavar="FILE.npz", help="Where the outputs go, by name"
)
@click.option("--force", is_flag=True, help="Replace an existing output file")
@device_option("XLA device")
@click.option("--strict", is_flag=True, help="Fail if a library was built from other sources than at export")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object")
def run_artifact(
    file: Path,
    input_path: Path | None,
    seed: int | None,
    output_path: Path | None,
    force: bool,
    device: str,
    strict: bool,
    as_json: bool,
) -> None:
    """Run what pyxla.export saved; checks versions and libraries

    \b
    Example: devtool run-artifact model.pyxla --random 1

    \b
    FILE.npz: bfloat16 as uint16 and float8 as uint8, which hold their bits. Random inputs: floats are
    normal, integers are 0, because most are lengths or indices.
    """
    from devtool.release.run_artifact import Inputs, print_outcome, run

    outcome = run(file, Inputs(input_path, seed), output_path, force=force, device=device, strict=strict)
    print_outcome(outcome, as_json=as_json)
