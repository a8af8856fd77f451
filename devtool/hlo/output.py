"""Prints the output of `devtool hlo`."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

GPUS = ("A100", "H100", "H200")
STAGES = ("stablehlo", "before", "after")


def print_report(lowered: str | None, inspection: Any) -> None:
    """Prints the lowered module, if there is one, then what XLA made of it."""
    if lowered is not None:
        print_module(lowered, "")
        click.echo()
    if inspection.modules:
        click.echo(str(inspection))


def print_stage(inspection: Any, stage: str) -> None:
    """Prints the modules at one stage."""
    for i, module in enumerate(inspection.modules):
        text = module.stablehlo() if stage == "stablehlo" else getattr(module, stage)
        print_module(text, "\n" if i else "")


def print_diff(inspection: Any) -> None:
    """Prints what XLA changed in each module, as a unified diff without metadata (source lines)."""
    for module in inspection.modules:
        before, after = (_without_notes(text).splitlines() for text in (module.before, module.after))
        names = (f"{module.name}, before optimisation", f"{module.name}, after optimisation")
        for line in difflib.unified_diff(before, after, *names, lineterm=""):
            click.echo(line)


def print_json(inspection: Any) -> None:
    """Prints the whole inspection as one JSON object."""
    click.echo(json.dumps(inspection.as_json(), indent=1, allow_nan=False))


def write_graph(inspection: Any, path: Path, stage: str) -> None:
    """Writes the modules as an SVG file."""
    from devtool.hlo.svg import draw

    text, left_out = draw(inspection.modules, "before" if stage == "before" else "after")
    path.write_text(text)
    more = f"; {left_out} instructions far from a custom call are left out" if left_out else ""
    click.echo(f"hlo: wrote {path}{more}", err=True)


def print_module(text: str, above: str) -> None:
    """Prints a module; on a terminal its custom calls are highlighted."""
    text = above + text.strip()
    if not click.get_text_stream("stdout").isatty():
        click.echo(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in text.splitlines():
        own = re.search(r" custom-call(-start)?\(| stablehlo\.custom_call ", line)
        console.print(Text(line, style="bold cyan" if own else ""), soft_wrap=True)


def print_calls(targets: Sequence[str]) -> None:
    """Prints the number of custom calls and their targets on stderr."""
    listed = ", ".join(targets) or "none"
    click.echo(f"hlo: {len(targets)} custom call{'s' * (len(targets) != 1)}: {listed}", err=True)


def _without_notes(text: str) -> str:
    return re.sub(r", metadata=\{[^}]*\}", "", text).strip()
