"""The HLO module of lazily traced tensors, and what XLA made of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pyxla.errors import PyxlaError, mismatch

DUMP_FLAGS = "--xla_dump_hlo_as_text"


def lowered(tensors: list[torch.Tensor]) -> str:
    """The module that computes these XLA tensors, before XLA optimises it; the tensors stay pending."""
    import torch_xla

    return torch_xla._XLAC._get_xla_tensors_hlo(tensors)


def dump_to(folder: Path) -> None:
    """Lets XLA write every module that it compiles to `folder`. Only before the first XLA computation."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder} {DUMP_FLAGS}".strip()


def dump_folder() -> Path | None:
    """Where XLA writes its modules, or None if it does not."""
    match = re.search(r"--xla_dump_to=(\S+)", os.environ.get("XLA_FLAGS", ""))
    return Path(match[1]) if match else None


@contextmanager
def optimized_modules() -> Iterator[list[str]]:
    """Collects the optimised modules that XLA compiles inside the block; the list is filled when the block ends.

    Needs `dump_to` before the first computation (the pytest plugin calls it).
    """
    folder = dump_folder()
    if folder is None:
        raise PyxlaError(mismatch("hlo", "dump", "--xla_dump_to in XLA_FLAGS", "none"), "call pyxla.hlo.dump_to first")
    pattern = "*after_optimizations.txt"
    before = set(folder.glob(pattern))
    modules: list[str] = []
    yield modules
    modules.extend(path.read_text() for path in sorted(set(folder.glob(pattern)) - before))
