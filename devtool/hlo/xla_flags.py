"""XLA_FLAGS of a script that is looked at. pyxla.hlo.dump brings torch, and the script comes first."""

from __future__ import annotations

import re
from pathlib import Path


def dumping(flags: str, folder: Path) -> tuple[str, Path]:
    """Flags that make XLA write its modules as text, and where: the folder that the flags name, else this one."""
    named = re.findall(r"--xla_dump_to=(\S+)", flags)
    folder = Path(named[-1]) if named else folder  # as XLA reads it
    return f"{flags} --xla_dump_to={folder} --xla_dump_hlo_as_text".strip(), folder
