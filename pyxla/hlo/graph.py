"""A module's text as a graph: which instruction computes what another one reads. Needs neither torch nor XLA."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pyxla.hlo.text import Instruction, fields_of, instruction_of, split

__all__ = ["CALLS", "NOTHING", "Graph", "Node", "Source", "Use"]

_HEADER = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$|(?P<bare_entry>ENTRY )?%?(?P<bare>[\w.\-]+) \{$")
_COMMENT = re.compile(r"/\*.*?\*/")
_ARRAY = re.compile(r"(?P<type>[a-z]\w*)\[(?P<dims>[^\]]*)\](?:\{(?P<order>[\d,]*)[^}]*\})?")
# These pass on an operand; nothing runs for them.
_HANDS_ON = {"bitcast", "optimization-barrier", "copy-done", "custom-call-done", "async-done"}
# Fields that name a computation; opcodes whose computations run by themselves, not as a part of the instruction.
_CALLING = ("calls", "to_apply", "body", "condition", "branch_computations")
_RUNS = {"call", "while", "conditional", "async-start"}
CALLS = ("custom-call", "custom-call-start")
# These compute and move nothing.
NOTHING = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element"}
# XLA:CUDA fuses a custom call with slices that are dense in memory: the call gets their addresses, nothing is moved.
# Each of these passes on the operand of this number.
_ADDRESSES = {"slice": 0, "dynamic-slice": 0, "dynamic-update-slice": 1}


@dataclass(frozen=True)
class Node:
    """An instruction with what it reads.

    Attributes:
        name: name of the instruction.
        opcode: what it does.
        shape: shape and layout of its result.
        operands: names of the instructions that it reads.
        fields: the fields after the operands: `{"dimensions": "{1,0}"}`.
        computation: name of the computation that contains it.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    fields: dict[str, str]
    computation: str

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that it calls."""
        return tuple(re.findall(r"%?([\w.\-]+)", " ".join(self.fields.get(name, "") for name in _CALLING)))


@dataclass(frozen=True)
class Source:
    """The origin of a value: an instruction, and which of its results if it has several."""

    node: Node
    index: int | None = None


@dataclass(frozen=True)
class Use:
    """A use of a value: the instruction that reads it, and as which of its operands."""

    node: Node
    operand: int


class Graph:
    """A module's instructions, and the values that pass between them.

    Sources and uses are instructions that run: tuples, bitcasts and computations that are called once are skipped. An
    instruction inside a fusion or a reduction is neither, except a custom call, to which its fusion passes addresses.

    Args:
        text: the module's text.

    Attributes:
        nodes: every instruction by its name.
        computations: the instructions of each computation, in order.
        entry: name of the entry computation; empty if there is none.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Node]] = {}
        self.entry = ""
        self._roots: dict[str, Node] = {}
        self._read(text)
        self.nodes = {node.name: node for nodes in self.computations.values() for node in nodes}

    def _read(self, text: str) -> None:
        inside: str | None = None
        for line in text.splitlines():
            header = _HEADER.match(line) if not line.startswith((" ", "HloModule")) else None
            if header:
                inside = header["name"] or header["bare"]
                self.computations[inside] = []
                self.entry = inside if header["entry"] or header["bare_entry"] else self.entry
            elif line.startswith("}"):
                inside = None
            elif inside is not None and (found := instruction_of(line)):
                node = _node(found, inside)
                self.computations[inside].append(node)
                if line.lstrip().startswith("ROOT "):
                    self._roots[inside] = node

    @cached_property
    def running(self) -> tuple[Node, ...]:
        """The instructions that run by themselves, in the order of the text: all but those inside another one."""
        reached, waiting = [], [self.entry]
        while waiting:
            name = waiting.pop()
            if name in reached or name not in self.computations:
                continue
            reached.append(name)
            runs = [n for n in self.computations[name] if n.opcode in _RUNS or self._is_fused_call(n)]
            waiting += [called for n in runs for called in n.called]
        nodes = [node for name in self.computations if name in reached for node in self.computations[name]]
        return tuple(
            n
            for n in nodes
            if n.opcode not in ("tuple", "get-tuple-element")
            and self._handed_on(n) is None
            and not self._is_looked_through(n)
            and self._caller(n) is None
        )

    @cached_property
    def uses(self) -> dict[str, list[tuple[int | None, Use]]]:
        """Name of a running instruction -> (number of a result or None, use of that result) pairs."""
        found: dict[str, list[tuple[int | None, Use]]] = {}
        for node in self.running:
            for place, operand in enumerate(node.operands):
                for source in self._all_sources(operand):
                    found.setdefault(source.node.name, []).append((source.index, Use(node, place)))
        return found

    @cached_property
    def outputs(self) -> tuple[Source, ...]:
        """The sources of the module's outputs, in order."""
        root = self._roots.get(self.entry)
        found: list[Source] = []
        for source in self._all_sources(root.name) if root else ():
            whole = source.index is None and source.node.shape.startswith("(")
            found += [Source(source.node, i) for i in range(len(arrays(source.node.shape)))] if whole else [source]
        return tuple(found)

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Name of each parameter of the entry computation -> its number."""
        return {
            node.name: _number(node) for node in self.computations.get(self.entry, []) if node.opcode == "parameter"
        }

    def source(self, name: str, index: int | None = None) -> Source | None:
        """The running instruction that computes the value of this name; None if the text is truncated."""
        for _ in range(len(self.nodes) + 1):
            # XLA:CUDA writes %call#1 for get-tuple-element(%call), index=1.
            name, *places = name.split("#")
            if places:
                index = int(places[0]) if places[0].isdecimal() else 0
            node = self.nodes.get(name)
            if node is None:
                return None
            if (handed := self._handed_on(node)) is not None:
                name = handed
            elif node.opcode == "get-tuple-element" and node.operands:
                place = node.fields.get("index", "")
                name, index = node.operands[0], int(place) if place.isdecimal() else 0
            elif node.opcode == "tuple" and index is not None and index < len(node.operands):
                name, index = node.operands[index], None
            elif self._is_looked_through(node) and node.called[0] in self._roots:
                name = self._roots[node.called[0]].name
            elif (caller := self._caller(node)) is not None and _number(node) < len(caller.operands):
                name = caller.operands[_number(node)]
            else:
                return Source(node, index)
        return None

    def body(self, node: Node) -> list[Node]:
        """The instructions inside a fusion."""
        return self.computations.get(node.called[0], []) if node.opcode == "fusion" and node.called else []

    def _all_sources(self, name: str) -> list[Source]:
        """The source of a name; for a tuple, the sources of all its elements."""
        source = self.source(name)
        if source is None:
            return []
        if source.node.opcode == "tuple":
            return [s for operand in source.node.operands if (s := self.source(operand))]
        return [source]

    def _handed_on(self, node: Node) -> str | None:
        """The operand that an instruction passes on; None if it passes on none."""
        place = 0 if node.opcode in _HANDS_ON else None
        if node.opcode in _ADDRESSES and (caller := self._callers.get(node.computation)) and caller.opcode == "fusion":
            place = _ADDRESSES[node.opcode]
        return node.operands[place] if place is not None and place < len(node.operands) else None

    def _is_fused_call(self, node: Node) -> bool:
        return any(inner.opcode in CALLS for inner in self.body(node))

    def _is_looked_through(self, node: Node) -> bool:
        return bool(node.called) and self._callers.get(node.called[0]) is node

    def _caller(self, node: Node) -> Node | None:
        """The only call, or fusion of a custom call, whose computation has this parameter."""
        return self._callers.get(node.computation) if node.opcode == "parameter" else None

    @cached_property
    def _callers(self) -> dict[str, Node]:
        """Computation -> its only caller, if that is a call or a fusion of a custom call."""
        callers: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            for name in node.called:
                callers.setdefault(name, []).append(node)
        once = {name: nodes[0] for name, nodes in callers.items() if len(nodes) == 1}
        return {name: node for name, node in once.items() if node.opcode == "call" or self._is_fused_call(node)}


def arrays(shape: str) -> list[str]:
    """The array shapes of a shape: itself, or the elements of a tuple."""
    return [match[0] for match in _ARRAY.finditer(_COMMENT.sub("", shape))]


def dims_and_order(shape: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Dimensions of an array shape, and its layout, fastest dimension first; row-major if it is not stated."""
    array = _ARRAY.match(shape)
    dims = tuple(d for d in (array["dims"] if array else "").split(",") if d)
    order = array["order"] if array else None
    return dims, tuple(int(d) for d in order.split(",")) if order else tuple(reversed(range(len(dims))))


def bytes_of(shape: str) -> int:
    """Bytes of a shape, without padding; for a tuple, of all its arrays."""
    total = 0
    for text in arrays(shape):
        array = _ARRAY.match(text)
        bits = re.search(r"\d+", array["type"])
        count = 1
        for dim in array["dims"].split(","):
            count *= int(re.sub(r"\D", "", dim) or 1)
        total += -(-count * (int(bits[0]) if bits else 8) // 8) if array["type"] != "token" else 0
    return total


def _number(node: Node) -> int:
    return int(node.operands[0]) if node.operands and node.operands[0].isdecimal() else 0


def _node(found: tuple[Instruction, str], computation: str) -> Node:
    instruction, rest = found
    return Node(
        name=instruction.name,
        opcode=instruction.opcode,
        shape=instruction.shape,
        operands=tuple(_operand_names(instruction.operands)),
        fields=fields_of(rest),
        computation=computation,
    )


def _operand_names(text: str) -> Iterator[str]:
    """The names in the parentheses after an opcode: `f32[8]{0} %x`, `%x`, or the number of a parameter."""
    for part in split(_COMMENT.sub("", text)):
        yield part.rpartition(" ")[2].removeprefix("%")
