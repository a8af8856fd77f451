"""What XLA made of a function: its modules before and after optimisation, custom calls, copies, memory.

    print(pyxla.inspect(step, x, weight))

`inspect` runs the function while XLA writes down what it compiles (pyxla/hlo/dump.py); nothing is set beforehand. The
data is plain: `as_json` gives all of it.
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
    """What XLA compiled while a function or a block ran; printed, it is a text for people.

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
        """All of it as dicts, lists, strings and numbers; numbers that JSON has not are strings."""
        return _plain(dataclasses.asdict(self))

    def __str__(self) -> str:
        return describe(self.modules, self.device)


def inspect(fn: Callable, *args: Any, **kwargs: Any) -> Inspection:
    """Runs a function on XLA and says what XLA made of it. Print the result, or read its fields.

    The function runs as ever: what it updates in place is updated, and what XLA compiles is there for the next run.
    What XLA has compiled before cannot be shown: then the function runs a second time, compiled anew for this alone.

    Args:
        fn: works on XLA tensors, or is compiled with `torch.compile(backend="openxla")`. Its results must be tensors,
            or it must update tensors in place: what nobody holds is not computed.
        args: handed to it.
        kwargs: handed to it.

    Returns:
        Inspection.

    Raises:
        ArgumentError: fn is no function.
        PyxlaError: it computes nothing on XLA. What fn itself raises goes through.
    """
    if not callable(fn):
        raise ArgumentError(mismatch("inspect", "fn", "a function", type(fn).__name__))
    with inspecting(private=False) as seen:
        before = dump.executions()
        result = fn(*args, **kwargs)
    # What runs is counted when it is done, by a thread of torch_xla's that may be late: where nothing was seen, the
    # function gets its second run whatever the count says.
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
    """Watches what XLA compiles inside a block: `with pyxla.inspecting() as seen:`, filled when the block ends.

    What was pending before runs first, and what is pending at the end runs in the block.

    Args:
        private: compile all of it anew, also what XLA has compiled before; nobody else gets what is compiled here, and
            `pyxla.testing.compilations` does not count it. False: only what is new to XLA is seen.
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
    """The modules that XLA wrote down, in the order of their compilation.

    Args:
        files: all of them, or those that end in `before_optimizations.txt`.
    """
    first = [path for path in files if path.name.endswith(_BEFORE)]
    return [module for path in first if (module := _read_module(path))]


def _read_module(before: Path) -> Module | None:
    """The module of a file `<prefix>before_optimizations.txt`; None for one that XLA compiled for itself, half way."""
    prefix = before.name.removesuffix(_BEFORE)
    written = before.stat().st_mtime_ns
    # Older ones are another process's, of the same name.
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
