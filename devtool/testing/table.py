"""The table of `devtool test`: the results of each op's checks, as recorded by pyxla/testing/op_checks.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Column -> the name of its check.
COLUMNS = {
    "custom call": "hlo",
    "raw call": "raw",
    "lazy": "lazy",
    "compiled": "compiled",
    "CPU": "cpu",
    "opcheck": "opcheck",
}
# Hyphenated in the table, so that names of 26 letters fit into 80 columns.
_HYPHENATED = {"compiled": "com-\npiled", "opcheck": "op-\ncheck", "recompiles": "re-\ncompiles"}


def print_table(records: Sequence[dict[str, Any]]) -> None:
    """Prints one row per op; nothing if no op was checked."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not records:
        return
    caption = "\nworst error: share of what is allowed"
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, caption=caption, caption_justify="left")
    table.add_column("op", no_wrap=True)
    for title in ("cases", *COLUMNS, "worst error", "recompiles"):
        table.add_column(_HYPHENATED.get(title, title.replace(" ", "\n")), justify="right", no_wrap=True)
    for op in sorted({record["op"] for record in records}):
        own = [record for record in records if record["op"] == op]
        cells = [op, str(len({record["case"] for record in own}))]
        cells += [_passed([record for record in own if record["check"] == check]) for check in COLUMNS.values()]
        shares = [record["share"] for record in own if "share" in record]
        recompiles = [record["recompiles"] for record in own if "recompiles" in record]
        cells += [f"{max(shares):.0%}" if shares else "-", str(sum(recompiles)) if recompiles else "-"]
        table.add_row(*(Text(cell, style="bold red" if "FAILED" in cell else "") for cell in cells))
    console = Console()
    # Numbers of failed checks may need more than the terminal's width, and a cut name or number says nothing.
    unlimited = console.options.update(max_width=10_000)
    console = Console(width=max(console.width, console.measure(table, options=unlimited).maximum))
    console.print()
    console.print(table)


def _passed(records: Sequence[dict[str, Any]]) -> str:
    failed = sum(not record["ok"] for record in records)
    return f"{failed} FAILED" if failed else "ok" if records else "-"
