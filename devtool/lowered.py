"""The HLO module of one case of an op, before XLA optimises it."""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

from devtool.errors import DevtoolError, unknown


def load_cases(op: str) -> list[Any]:
    """CASES of the op's cases.py."""
    # Before torch_xla is imported: it guesses otherwise, and says so.
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    try:
        return list(importlib.import_module(f"pyxla_kernels.{op}.cases").CASES)
    except ModuleNotFoundError as error:
        if error.name != f"pyxla_kernels.{op}.cases":
            raise
        hint = "copy kernels/simple_add/cases.py and adapt it"
        raise DevtoolError(f"hlo: {op}: expected kernels/{op}/cases.py, got none", hint) from None


def select_case(op: str, cases: list[Any], name: str | None) -> Any:
    """The case of this name, or the first one."""
    found = [case for case in cases if name in (None, case.name)]
    if not found:
        known = [case.name for case in cases]
        raise unknown("hlo", "--case", "one of cases.py", str(name), known, f"devtool hlo {op} --list")
    return found[0]


def lowered_module(op_name: str, case: Any) -> str:
    """The module's text."""
    import torch
    import torch_xla

    from pyxla import hlo, ops
    from pyxla.op import find_op

    ops.load_op(op_name)
    op = find_op(op_name)
    device = torch_xla.device()
    arguments = case.arguments()
    on_xla = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    torch_xla.sync(wait=True)
    results = op(**on_xla)
    results = results if isinstance(results, tuple) else (results,)
    return hlo.lowered([t for t in (*(on_xla[a.name] for a in op.schema.mutated), *results) if t is not None])


def print_module(text: str) -> None:
    """Prints the module; on a terminal its custom calls stand out. How many there are follows on stderr."""
    from pyxla import hlo_text

    text = text.strip()
    calls = hlo_text.custom_calls(text)
    names = {call.name for call in calls}
    if click.get_text_stream("stdout").isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for line in text.splitlines():
            own = line.strip().removeprefix("ROOT ").lstrip("%").partition(" = ")[0] in names
            console.print(Text(line, style="bold cyan" if own else ""), soft_wrap=True)
    else:
        click.echo(text)
    listed = ", ".join(call.target for call in calls)
    click.echo(f"hlo: {len(calls)} custom call{'s' * (len(calls) != 1)}: {listed or 'none'}", err=True)
