"""How an op may be split over devices: its file declares it, and `pyxla.shard` uses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyxla.errors import DefinitionError, mismatch
from pyxla.op.schema import Schema


@dataclass(frozen=True)
class Sharding:
    """A way to split an op: which dimension of each tensor is split into one part per device.

    Attributes:
        by: its name, such as "heads".
        operands: for each tensor of the schema the dimension, negative from the end; None: whole on every device.
        results: the same for each result of the custom call, operands updated in place first.
    """

    by: str
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]

    @classmethod
    def declare(
        cls, name: str, schema: Schema, by: str, operands: Mapping[str, int], results: Iterable[int | None]
    ) -> Sharding:
        """Makes one from the dimensions by name.

        Raises:
            DefinitionError: an argument that is not a tensor of the op, or another number of results.
        """
        tensors = [slot.name for slot in schema.tensors]
        for argument in operands:
            if argument not in tensors:
                raise DefinitionError(mismatch(name, "sharding", f"one of {', '.join(tensors)}", argument))
        results, count = tuple(results), schema.result_count - len(schema.mutated)
        if len(results) != count:
            raise DefinitionError(mismatch(name, "sharding", f"a dimension for each of {count} results", len(results)))
        updated = tuple(operands.get(slot.name) for slot in schema.mutated)
        return cls(by, tuple(map(operands.get, tensors)), updated + results)
