"""Makes XLA write the modules that it compiles to files: for one block of code, also if XLA has compiled before.

XLA reads XLA_FLAGS once, before its first computation. On the CPU, pyxla calls XLA's parser of the flags again; on
CUDA, pjrt_proxy adds flags to each compilation's options.
docs/decisions/0007-see-what-xla-compiled.md has the alternatives and their costs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pyxla.hlo import wire
from pyxla.pjrt import platform, proxy
from pyxla.torch_xla_patches import debug_flags
from pyxla.torch_xla_patches.compiled_graphs import graphs_of_compiled_functions

__all__ = ["private_compilations"]

_AS_TEXT = "xla_dump_hlo_as_text"
# torch_xla makes the value of this variable part of a graph's cache key, and uses it only for auto-sharding.
_PART_OF_THE_KEY = "XLA_AUTO_SPMD_MESH"

_switched_to: Path | None = None
_private_numbers = itertools.count(1)
_private_compilations = 0


def dump_to(folder: Path) -> None:
    """Makes XLA write every module that it compiles to `folder`. Call it before the first XLA computation."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder} --{_AS_TEXT}".strip()


def dump_folder() -> Path | None:
    """The folder to which XLA_FLAGS makes XLA write its modules, or None."""
    folders = re.findall(r"--xla_dump_to=(\S+)", os.environ.get("XLA_FLAGS", ""))
    return Path(folders[-1]) if folders else None  # XLA uses the last one


@contextmanager
def dumping() -> Iterator[Path]:
    """Makes XLA write every module that it compiles inside the block to a folder, which is deleted when the block ends.

    If XLA_FLAGS or another `dumping` around this one names a folder, that folder is used and kept.

    Raises:
        PyxlaError: on the CPU, a torch_xla whose library lacks XLA's parser of the flags.
    """
    global _switched_to
    named = dump_folder()
    # On CUDA the options are also what makes pjrt_proxy compile a graph that it has in a file.
    switched = _switched_to if named is None or platform.device_type() == "CUDA" else named
    if switched is not None:
        yield switched
        return
    with tempfile.TemporaryDirectory(prefix="pyxla-hlo-") if named is None else nullcontext(named) as name:
        _switch(str(name))
        _switched_to = Path(name)
        try:
            yield _switched_to
        finally:
            _switched_to = None
            _switch("")


def final_thunks(files: Iterable[Path]) -> list[Path]:
    """The files with the thunk sequences that XLA:CUDA will run, one per module.

    XLA writes a second file after the passes that make command buffers, but only where they changed something.
    """
    last = {}
    for path in sorted(files):
        module, found, _ = path.name.partition("thunk_sequence")
        if found:
            last[module] = path
    return list(last.values())


@contextmanager
def private_compilations() -> Iterator[None]:
    """Makes XLA compile everything that runs inside the block anew, and shares none of the graphs with other code.

    The graphs of the block have their own keys in torch_xla's cache, and functions from torch.compile are without their
    graphs until the block ends. `compilations` does not count the graphs of the block.
    """
    global _private_compilations
    before = _compilations()
    kept = os.environ.get(_PART_OF_THE_KEY)
    os.environ[_PART_OF_THE_KEY] = f"pyxla{next(_private_numbers)}"
    graphs = [(known, dict(known)) for known in graphs_of_compiled_functions()]
    for known, _ in graphs:
        known.clear()
    try:
        yield
    finally:
        for known, content in graphs:
            known.clear()
            known.update(content)
        _restore(_PART_OF_THE_KEY, kept)
        _private_compilations += _compilations() - before


def compilations() -> int:
    """How many graphs XLA has compiled in this process so far, without those inside `private_compilations`."""
    return _compilations() - _private_compilations


def executions() -> int:
    """How many graphs XLA has run in this process so far."""
    # torch_xla uses the second metric under SPMD.
    return _count("ExecuteTime") + _count("ExecuteReplicatedTime")


def _compilations() -> int:
    return _count("CompileTime")


def _count(metric: str) -> int:
    import torch_xla.debug.metrics as metrics

    data = metrics.metric_data(metric)
    return data[0] if data else 0


def _switch(folder: str) -> None:
    """Makes XLA write what it compiles to `folder` from now on, or nowhere if `folder` is empty."""
    if platform.device_type() == "CUDA":
        proxy.set_compile_options(overrides(xla_dump_to=folder, **{_AS_TEXT: True}) if folder else b"")
    else:
        debug_flags.set_flags(f"--xla_dump_to={folder} --{_AS_TEXT}={'true' if folder else 'false'}")


def _restore(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


def overrides(**flags: str | bool | int) -> bytes:
    """CompileOptionsProto.env_option_overrides: XLA's flags for one compilation.

    XLA merges these bytes into the options that they are appended to.
    """

    def override(flag: str | bool | int) -> bytes:
        number = 1 if isinstance(flag, str) else 2 if isinstance(flag, bool) else 3
        return wire.field(number, flag)

    return b"".join(wire.field(7, wire.field(1, name) + wire.field(2, override(flag))) for name, flag in flags.items())


@contextmanager
def written_files(folder: Path, pattern: str) -> Iterator[list[Path]]:
    """Collects the files of this pattern that are written to a folder inside the block, in the order of their numbers.

    XLA numbers modules from 0 in each process, so a user's folder may hold files of an earlier process under the same
    names.

    Args:
        folder: the folder that XLA writes to.
        pattern: a glob pattern.
    """
    before = _written_at(folder, pattern)
    found: list[Path] = []
    yield found
    found.extend(in_order(path for path, at in _written_at(folder, pattern).items() if before.get(path) != at))


def _written_at(folder: Path, pattern: str) -> dict[Path, int]:
    """When each file was last written, in ns; files that have been deleted since are left out."""
    found = {}
    for path in folder.glob(pattern) if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found


def in_order(files: Iterable[Path]) -> list[Path]:
    """Files that XLA has numbered, in the order of their numbers: module_9999 comes before module_10000."""
    return sorted(files, key=lambda path: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", path.name)])
