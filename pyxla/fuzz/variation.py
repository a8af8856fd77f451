"""Changes to the arguments of a case, as data: hypothesis draws and shrinks them, and they print as Python code."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from pyxla.testing import Case
from pyxla.testing.output_checks import same_bits


@dataclass(frozen=True)
class Variation:
    """Changes to a case's arguments, in the order in which they are made.

    Attributes:
        seed: of the case's own values.
        absent: optional arguments that become None.
        sizes: (argument, shape); the values repeat as often as they fit.
        dtypes: (argument, dtype).
        values: (argument, place, value); the place counts elements row by row, from 0 again after the last one.
        attributes: (argument, value).
    """

    seed: int = 0
    absent: tuple[str, ...] = ()
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    dtypes: tuple[tuple[str, torch.dtype], ...] = ()
    values: tuple[tuple[str, int, float], ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()

    def arguments(self, case: Case) -> dict[str, Any]:
        """The case's arguments with these changes."""
        made = {**unchanged(case, self.seed)}
        made |= dict.fromkeys(self.absent)
        for name, shape in self.sizes:
            made[name] = resized(made[name], shape)
        for name, dtype in self.dtypes:
            made[name] = made[name].to(dtype)
        for name, place, value in self.values:
            flat = made[name] = made[name].clone(memory_format=torch.contiguous_format)
            if flat.numel():
                flat.view(-1)[place % flat.numel()] = value
        return made | dict(self.attributes)


@functools.lru_cache(maxsize=1)
def unchanged(case: Case, seed: int) -> dict[str, Any]:
    """The case's own arguments, which callers must not change. What draws an input needs them several times."""
    return case.arguments(seed)


def resized(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor's values, row by row and over again, in another shape; zeros if there are none."""
    made = torch.zeros(shape, dtype=tensor.dtype)
    if made.numel() and tensor.numel():
        places = torch.arange(made.numel()) % tensor.numel()
        # Bytes, as torch cannot index all dtypes.
        raw = tensor.contiguous().view(-1).view(torch.uint8).view(tensor.numel(), -1)
        made.view(-1).view(torch.uint8).view(made.numel(), -1).copy_(raw[places])
    return made


def code_of(name: str, why: str, case: Case, arguments: dict[str, Any]) -> str:
    """Python for cases.py: a case with these arguments.

    Args:
        name: of the case.
        why: its reason.
        case: the case with whose tolerance it is compared.
        arguments: by name.
    """
    lines = [f"    Case(\n        {name!r},\n        {why!r},\n        lambda g: {{"]
    lines += [f"            {argument!r}: {_literal(value)}," for argument, value in arguments.items()]
    lines.append("        },")
    if case.roundings != Case.roundings:
        lines.append(f"        roundings={case.roundings},")
    if not case.repeatable:
        lines.append("        repeatable=False,")
    return "\n".join([*lines, "    ),"])


def _literal(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return _number(value)
    flat = value.reshape(-1)
    if flat.numel() > 1 and same_bits(flat, flat[:1].expand_as(flat)):
        return f"torch.full({tuple(value.shape)}, {_number(flat[0].item())}, dtype={value.dtype})"
    numbers = ", ".join(map(_number, (flat.double() if flat.is_floating_point() else flat).tolist()))
    return f"torch.tensor([{numbers}], dtype={value.dtype}).reshape({tuple(value.shape)})"


def _number(value: Any) -> str:
    return f"float({str(value)!r})" if isinstance(value, float) and not math.isfinite(value) else repr(value)
