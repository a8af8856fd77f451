"""XLA_FLAGS for a script that is inspected. pyxla.hlo.dump would import torch before the script does."""

from __future__ import annotations

import re
from pathlib import Path


def dumping(flags: str, folder: Path) -> tuple[str, Path]:
    """Flags that make XLA dump its modules as text, and the folder: the one that `flags` names, else this one."""
    named = re.findall(r"--xla_dump_to=(\S+)", flags)
    folder = Path(named[-1]) if named else folder  # the last one counts, as in XLA
    return f"{flags} --xla_dump_to={folder} --xla_dump_hlo_as_text".strip(), folder
