"""What the file tuning.py of an op declares: parameters, their values, classes of shapes, and where a table starts."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from devtool import project
from devtool.errors import DevtoolError

# Values of the parameters, in their order.
Values = tuple[int, ...]
# The largest number of each key, in their order; None: above the largest that is named.
ShapeClass = tuple[int | None, ...]
Table = dict[ShapeClass, Values]

MOST_VARIANTS = 64
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_EXAMPLE = """write it; the kernel calls Choose of tuning.h, which devtool tune writes (docs/reference/cli/tune.md):

PARAMETERS = {"threads": (128, 256, 512)}
CLASSES = {"rows": (256,)}

def key(x):
    return {"rows": x.shape[0]}

def start(rows):
    return {"threads": 256}"""


@dataclass(frozen=True)
class Space:
    """What an op's tuning.py declares.

    Attributes:
        op: the op's folder.
        device: "cpu" or "cuda": whose handler has the parameters.
        parameters: name -> the values that it may have.
        classes: key -> the largest number of each class but the last.
        variants: all values that may go together.
        start: the values of each class before a measurement.
    """

    op: str
    device: str
    parameters: Mapping[str, tuple[int, ...]]
    classes: Mapping[str, tuple[int, ...]]
    variants: tuple[Values, ...]
    start: Table

    def class_of(self, key: Any) -> ShapeClass:
        """The class of what tuning.py's `key` returned.

        Raises:
            DevtoolError: it returned something else than a whole number for each key.
        """
        if not isinstance(key, dict) or key.keys() != self.classes.keys() or not all(map(_is_whole, key.values())):
            raise _wrong(self.op, "key", f"whole numbers for {_listed(self.classes)}", repr(key))
        return tuple(
            next((largest for largest in bounds if key[name] <= largest), None) for name, bounds in self.classes.items()
        )

    def named(self, values: Values) -> dict[str, int]:
        """The values by their parameters' names."""
        return dict(zip(self.parameters, values, strict=True))

    def text(self, values: Values) -> str:
        """The values for people: "threads=256 vectors=2"."""
        return " ".join(f"{name}={value}" for name, value in self.named(values).items())

    def class_text(self, shape: ShapeClass) -> str:
        """The class for people: "rows <= 256, 32 < vectors <= 512"."""
        parts = []
        for (name, bounds), largest in zip(self.classes.items(), shape, strict=True):
            number = len(bounds) if largest is None else bounds.index(largest)
            if largest is None:
                parts.append(f"{name} > {bounds[-1]}")
            else:
                parts.append(f"{bounds[number - 1]} < {name} <= {largest}" if number else f"{name} <= {largest}")
        return ", ".join(parts) or "any shape"


def read_space(op: str) -> Space:
    """Reads kernels/<op>/tuning.py.

    Raises:
        DevtoolError: there is none, it cannot be run, or what it declares does not fit together.
    """
    if not (project.kernels() / op / "tuning.py").is_file():
        raise DevtoolError(f"tune: OP: expected kernels/{op}/tuning.py, which declares parameters, got none", _EXAMPLE)
    try:
        module = importlib.import_module(project.module(op, "tuning"))
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise _wrong(op, "file", "Python that can be imported", got) from error
    declared = vars(module)
    parameters = _numbers(op, "PARAMETERS", declared.get("PARAMETERS"))
    classes = _numbers(op, "CLASSES", declared.get("CLASSES"))
    if not parameters:
        raise _wrong(op, "PARAMETERS", "at least one parameter", "none")
    for name, bounds in classes.items():
        if list(bounds) != sorted(bounds):
            raise _wrong(op, "CLASSES", f"ascending numbers for {name}", str(bounds))
    for name in ("key", "start"):
        if not callable(declared.get(name)):
            raise _wrong(op, name, "a function", repr(declared.get(name)))
    device = declared.get("DEVICE", "cuda")
    if device not in ("cpu", "cuda"):
        raise _wrong(op, "DEVICE", "cpu or cuda", repr(device))
    variants = _variants(op, parameters, declared.get("allowed", lambda **values: True))
    return Space(op, device, parameters, classes, variants, _start(op, parameters, classes, variants, module.start))


def _numbers(op: str, name: str, declared: Any) -> dict[str, tuple[int, ...]]:
    """A declaration of names with several whole numbers each."""
    expected = f"a dict of names in lower case, each with different whole numbers, as {{'{name.lower()}': (1, 2)}}"
    if not isinstance(declared, dict):
        raise _wrong(op, name, expected, repr(declared))
    for key, values in declared.items():
        right = isinstance(values, tuple | list) and values and all(map(_is_whole, values))
        if not (isinstance(key, str) and _NAME.fullmatch(key) and right and len({*values}) == len(values)):
            raise _wrong(op, name, expected, f"{key!r}: {values!r}")
    return {key: tuple(values) for key, values in declared.items()}


def _variants(op: str, parameters: Mapping[str, tuple[int, ...]], allowed: Callable[..., bool]) -> tuple[Values, ...]:
    every = itertools.product(*parameters.values())
    found = tuple(values for values in every if allowed(**dict(zip(parameters, values, strict=True))))
    if not 2 <= len(found) <= MOST_VARIANTS:
        raise _wrong(op, "PARAMETERS", f"2 to {MOST_VARIANTS} variants that are allowed", str(len(found)))
    return found


def _start(
    op: str,
    parameters: Mapping[str, tuple[int, ...]],
    classes: Mapping[str, tuple[int, ...]],
    variants: tuple[Values, ...],
    start: Callable[..., Any],
) -> Table:
    """The values that `start` gives for the largest shape of each class, or the smallest of one without a largest."""
    table: Table = {}
    for shape in itertools.product(*((*bounds, None) for bounds in classes.values())):
        key = {
            name: bounds[-1] + 1 if largest is None else largest
            for (name, bounds), largest in zip(classes.items(), shape, strict=True)
        }
        given = start(**key)
        values = tuple(given.get(name) for name in parameters) if isinstance(given, dict) else ()
        if values not in variants or len(given) != len(parameters):
            arguments = ", ".join(f"{name}={number}" for name, number in key.items())
            raise _wrong(op, f"start({arguments})", f"allowed values of {_listed(parameters)}", repr(given))
        table[shape] = values
    return table


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(names: Any) -> str:
    return ", ".join(names) or "no name"


def _wrong(op: str, name: str, expected: str, got: str) -> DevtoolError:
    message = f"tune: kernels/{op}/tuning.py: {name}: expected {expected}, got {got}"
    return DevtoolError(message, "docs/reference/cli/tune.md says what the file declares")
