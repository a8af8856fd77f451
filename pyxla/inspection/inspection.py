"""What XLA compiled for a function: its modules before and after optimisation, custom calls, copies, memory.

    print(pyxla.inspect(step, x, weight))

`inspect` runs the function while XLA writes the modules that it compiles to files (pyxla/hlo/dump.py); it needs no
settings beforehand. `as_json` returns all of the data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyxla.errors import ArgumentError, PyxlaError, mismatch
from pyxla.hlo import dump
from pyxla.hlo.module import Call, Module, read_module
from pyxla.inspection.text import describe
from pyxla.pjrt.platform import device_type
from pyxla.torch_ops.custom_op import optional_attributes

_BEFORE = "before_optimizations.txt"
_AFTER = "after_optimizations.txt"


@dataclass
class Inspection:
    """What XLA compiled while a function or a block ran; print it for a readable summary.

    Attributes:
        device: "CPU" or "CUDA".
        modules: in the order of their compilation.
    """

    device: str
    modules: list[Module] = field(default_factory=list)

    def calls(self, target: str | None = None) -> list[Call]:
        """The custom calls of all modules, or those with this target."""
        return [call for module in self.modules for call in module.calls if target in (None, call.target)]

    def as_json(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers; NaN and infinities, which JSON lacks, are strings."""
        return _plain(dataclasses.asdict(self))

    def __str__(self) -> str:
        return describe(self.modules, self.device)


def inspect(fn: Callable, *args: Any, **kwargs: Any) -> Inspection:
    """Runs a function on XLA and returns what XLA compiled for it. Print the result, or read its fields.

    The function runs as usual: it updates tensors in place, and later runs reuse the graphs that XLA compiles. XLA does
    not show graphs that it has compiled before: if there are any, the function runs a second time, compiled anew.

    Args:
        fn: a function on XLA tensors, or one compiled with `torch.compile(backend="openxla")`. It must return tensors
            or update tensors in place: XLA does not compute a value that nothing refers to.
        args: passed to fn.
        kwargs: passed to fn.

    Returns:
        Inspection.

    Raises:
        ArgumentError: fn is not callable.
        PyxlaError: fn computes nothing on XLA. Exceptions of fn itself are passed on.
    """
    if not callable(fn):
        raise ArgumentError(mismatch("inspect", "fn", "a function", type(fn).__name__))
    with inspecting(private=False) as seen:
        before = dump.executions()
        result = fn(*args, **kwargs)
    # A thread of torch_xla's counts an execution after it has finished, perhaps too late: if nothing was compiled, the
    # function runs a second time whatever the count says.
    if not seen.modules or dump.executions() - before > len(seen.modules):
        with inspecting() as seen:
            result = fn(*args, **kwargs)
    if not seen.modules:
        raise PyxlaError(
            mismatch(
                "inspect", "fn", "a function that computes on XLA", f"one that left XLA nothing to do{_kind(result)}"
            ),
            "return the tensors that it computes; take arguments on torch_xla.device()",
        )
    return seen


@contextmanager
def inspecting(*, private: bool = True) -> Iterator[Inspection]:
    """Records what XLA compiles inside a block: `with pyxla.inspecting() as seen:`, filled when the block ends.

    Operations that are pending before the block run first; those that are pending at its end run inside it.

    Args:
        private: compile everything anew, including graphs that XLA has compiled before; other code does not reuse the
            graphs, and `pyxla.testing.compilations` does not count them. False: record only what XLA has not compiled
            before.
    """
    from pyxla.sync import sync

    sync()
    seen = Inspection(device_type())
    with dump.dumping() as folder:
        own = dump.private_compilations() if private else nullcontext()
        with dump.written_files(folder, f"*{_BEFORE}") as files, own:
            yield seen
            sync()
        seen.modules.extend(read_files(files))


def read_files(files: Sequence[Path]) -> list[Module]:
    """The modules that XLA wrote to files, in the order of the files.

    Args:
        files: all files, or only those that end in `before_optimizations.txt`.
    """
    first = [path for path in files if path.name.endswith(_BEFORE)]
    return [module for path in first if (module := _read_module(path))]


def _read_module(before: Path) -> Module | None:
    """The module of a file `<prefix>before_optimizations.txt`; None for one that XLA compiled only in part."""
    prefix = before.name.removesuffix(_BEFORE)
    written = before.stat().st_mtime_ns
    # Older files with this prefix are another process's.
    beside = [p for p in before.parent.iterdir() if p.name.startswith(prefix) and p.stat().st_mtime_ns >= written]

    def text_of(ending: str) -> str | None:
        return next((path.read_text() for path in beside if path.name.endswith(ending)), None)

    after = text_of(_AFTER)
    if after is None:
        return None
    thunks = [path.read_text() for path in dump.final_thunks(beside)]
    return read_module(
        before.read_text(),
        after,
        text_of("-buffer-assignment.txt") or "",
        thunks[0] if thunks else None,
        optional=optional_attributes(),
    )


def _kind(result: Any) -> str:
    return " and returned nothing" if result is None else f" and returned {type(result).__name__}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
