"""Finds the copies that XLA makes around custom calls, and why. Needs neither torch nor XLA.

A copy is an instruction that only moves data: `copy`, `transpose`, `slice`, `broadcast` and the like, or a fusion of
only such instructions. An instruction that also computes would run anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyxla.hlo.graph import NOTHING, Graph, Node, Source, arrays, bytes_of, dims_and_order
from pyxla.hlo.text import input_output_aliases

__all__ = ["Copy", "find_copies"]

_SLICES = {"slice", "dynamic-slice"}
_MOVES = {"copy", "copy-start", "transpose", "reverse", "broadcast", "reshape", *_SLICES}


@dataclass(frozen=True)
class Copy:
    """An instruction that only moves data.

    Attributes:
        name: name of the instruction.
        opcodes: what it does.
        shape: shape and layout of its result.
        size: bytes of its result.
        call: the custom call before or after it; empty if there is none.
        place: "operand 1" or "result 0" of that call, else empty.
        in_place: the call updates that operand in place.
        reason: why XLA copies, in words.
    """

    name: str
    opcodes: tuple[str, ...]
    shape: str
    size: int
    call: str
    place: str
    in_place: bool
    reason: str


def find_copies(text: str, aliases: dict[str, tuple[tuple[int, int], ...]]) -> tuple[Copy, ...]:
    """The copies of a module: first those around its custom calls, then the others that copy a whole buffer.

    Args:
        text: the module after XLA optimised it.
        aliases: name of a custom call -> its (result, operand) pairs that share a buffer.
    """
    reader = _Reader(Graph(text), aliases, {p: o for o, p in input_output_aliases(text)})
    found: dict[str, Copy] = {}
    for call in (node for node in reader.graph.running if node.name in aliases):
        for copy in (*reader.before(call), *reader.behind(call)):
            found.setdefault(copy.name, copy)
    for node in reader.graph.running:
        if node.name not in found and reader.moves(node) in (("copy",), ("copy-start",)):
            found[node.name] = reader.describe(node, None, "", reader.plain_reason(node, None, None))
    return tuple(found.values())


class _Reader:
    def __init__(self, graph: Graph, aliases: dict[str, tuple[tuple[int, int], ...]], donated: dict[int, int]):
        self.graph = graph
        self._aliases = aliases
        self._donated = donated

    def moves(self, node: Node) -> tuple[str, ...]:
        """The opcodes of an instruction that only moves data; empty for any other."""
        opcodes = [n.opcode for n in self.graph.body(node)] if node.opcode == "fusion" else [node.opcode]
        kept = [opcode for opcode in opcodes if opcode not in NOTHING]
        return tuple(dict.fromkeys(kept)) if set(kept) <= _MOVES else ()

    def describe(self, node: Node, call: Node | None, place: str, reason: str) -> Copy:
        operand = int(place.split()[1]) if place.startswith("operand") else None
        return Copy(
            name=node.name,
            opcodes=self.moves(node),
            shape=node.shape,
            size=bytes_of(arrays(node.shape)[0]) if arrays(node.shape) else 0,
            call=call.name if call else "",
            place=place,
            in_place=call is not None and operand in [o for _, o in self._aliases[call.name]],
            reason=reason,
        )

    def before(self, call: Node) -> list[Copy]:
        """The copies on the way to a call's operands."""
        found = []
        for place, name in enumerate(call.operands):
            chain = self._chain(name)
            for node in chain:
                found.append(self.describe(node, call, f"operand {place}", self._reason_before(node, call, place)))
        return found

    def behind(self, call: Node) -> list[Copy]:
        """The copies of a call's results."""
        found = []
        for index, use in self.graph.uses.get(call.name, []):
            opcodes = self.moves(use.node)
            if opcodes and set(opcodes) <= {"copy", "copy-start", "transpose"}:
                place = f"result {index or 0}"
                found.append(self.describe(use.node, call, place, self._reason_behind(use.node, call, index)))
        return found

    def _chain(self, name: str) -> list[Node]:
        """The copies from an operand upwards, up to the first instruction that computes."""
        chain: list[Node] = []
        source = self.graph.source(name)
        while source and source.node not in chain and self.moves(source.node) and source.node.operands:
            above = self.graph.source(source.node.operands[0])
            if above is None or above.node.opcode == "constant":
                break  # a broadcast constant is not a copy
            chain.append(source.node)
            source = above
        return chain

    def _reason_before(self, node: Node, call: Node, place: int) -> str:
        source = self.graph.source(node.operands[0])
        opcodes = self.moves(node)
        what = self._words(source)
        if _SLICES & set(opcodes):
            return f"operand {place} is a slice of {what}, and the call takes dense memory"
        if "broadcast" in opcodes:
            return f"operand {place} is {what} expanded, and the call takes dense memory"
        if self._changes_order(node, source):
            return f"operand {place} is {what} transposed, and the call takes it row-major"
        return self.plain_reason(node, call, place)

    def _reason_behind(self, node: Node, call: Node, index: int | None) -> str:
        if self._changes_order(node, Source(call, index)):
            return f"result {index or 0} is needed in another layout: {node.shape}"
        outputs = [(s.node.name, s.index) for s in self.graph.outputs]
        if (node.name, None) in outputs and (call.name, index) in outputs:
            return f"result {index or 0} is returned twice, and two outputs cannot share a buffer"
        return self.plain_reason(node, None, None)

    def plain_reason(self, node: Node, call: Node | None, place: int | None) -> str:
        """Why a buffer is copied unchanged.

        Args:
            node: the copy.
            call: the custom call that reads it, or None.
            place: number of the call's operand that it is, or None.
        """
        source = self.graph.source(node.operands[0]) if node.operands else None
        if source is None:
            return "XLA adds this copy itself"
        what = self._words(source)
        if self._changes_order(node, source):
            return f"{what} is {_shape_of(source)}, and {node.shape} is needed"
        parameter = self.graph.parameters.get(source.node.name)
        below = [use.node for _, use in self.graph.uses.get(node.name, [])]
        outputs = [*self._outputs(Source(node)), *self._outputs(source)]
        if parameter is not None and parameter not in self._donated:
            if outputs and not below:
                return f"output {outputs[0]} is {what}, and an output needs memory of its own"
            return f"{what} is not donated: it must keep its values, so an update in place works on a copy"
        readers = [n for n in (*self._readers(source), *below) if n not in (node, call) and not self.moves(n)]
        needed = [*dict.fromkeys(n.name for n in readers), *(f"output {i}" for i in outputs)]
        if needed:
            return f"the old values of {what} are still needed, by {', '.join(needed)}"
        if parameter is not None:
            return f"the memory of {what} was given to output {self._donated[parameter]}"
        return f"the values of {what} are still needed" if call and place is not None else "XLA adds this copy itself"

    def _readers(self, source: Source) -> list[Node]:
        return [use.node for i, use in self.graph.uses.get(source.node.name, []) if i == source.index]

    def _outputs(self, source: Source) -> list[int]:
        """The numbers of the outputs that return this value."""
        same = (source.node.name, source.index)
        return [i for i, output in enumerate(self.graph.outputs) if (output.node.name, output.index) == same]

    def _changes_order(self, node: Node, source: Source | None) -> bool:
        if "transpose" in self.moves(node) or source is None:
            return True
        return dims_and_order(_shape_of(source))[1] != dims_and_order(node.shape)[1]

    def _words(self, source: Source | None) -> str:
        """The name of a value: "argument <n>", else the instruction's name; a copy has the name of its original."""
        while source and self.moves(source.node) == ("copy",):
            source = self.graph.source(source.node.operands[0])
        if source is None:
            return "a value"
        number = self.graph.parameters.get(source.node.name)
        return f"argument {number}" if number is not None else source.node.name


def _shape_of(source: Source) -> str:
    shapes = arrays(source.node.shape)
    return shapes[source.index or 0] if (source.index or 0) < len(shapes) else ""
