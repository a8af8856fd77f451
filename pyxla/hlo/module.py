"""A module that XLA compiled, read from the texts that XLA writes: its custom calls, their neighbours, its memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyxla.hlo import attributes as hlo_attributes
from pyxla.hlo import text as hlo_text
from pyxla.hlo.buffer_assignment import MemoryPlan, read_memory_plan
from pyxla.hlo.copies import Copy, find_copies
from pyxla.hlo.graph import CALLS, NOTHING, Graph, Node, Source, arrays

__all__ = ["Call", "Module", "Neighbour", "Operand", "Result", "read_module"]


@dataclass(frozen=True)
class Neighbour:
    """An instruction before or after a custom call.

    Attributes:
        name: name of the instruction.
        opcode: what it does.
        fused: the opcodes that were fused into it, if it is a fusion.
        argument: number of the module's argument that it is, or None.
    """

    name: str
    opcode: str
    fused: tuple[str, ...]
    argument: int | None


@dataclass(frozen=True)
class Operand:
    """An operand: its shape and layout, and the instruction that computes it; None if the text is truncated."""

    shape: str
    source: Neighbour | None


@dataclass(frozen=True)
class Result:
    """A result of a custom call.

    Attributes:
        shape: its shape and layout.
        operand: number of the operand whose buffer it shares, or None.
        readers: the instructions that read it.
        outputs: the numbers of the module's outputs that return it.
    """

    shape: str
    operand: int | None
    readers: tuple[Neighbour, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A custom call of an optimised module.

    Attributes:
        name: name of the instruction.
        target: custom_call_target.
        operands: its operands, in order.
        results: its results, in order.
        attributes: the typed FFI attributes as Python values; an absent `int?` or `float?` of a pyxla op is None.
        api_version: API_VERSION_TYPED_FFI for a typed FFI handler.
    """

    name: str
    target: str
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    attributes: dict[str, Any]
    api_version: str

    @property
    def aliases(self) -> tuple[tuple[int, int], ...]:
        """(result, operand) pairs that share a buffer."""
        return tuple((i, result.operand) for i, result in enumerate(self.results) if result.operand is not None)


@dataclass(frozen=True)
class Module:
    """A module that XLA compiled.

    Attributes:
        name: XLA's name for it.
        before: its text as torch_xla passed it to XLA.
        after: its text as XLA runs it.
        calls_before: how many custom calls of each target were in it before XLA optimised it.
        calls: the custom calls that XLA runs.
        copies: the copies that XLA makes, with reasons.
        aliases: (output, argument) pairs that share a buffer: arguments that are updated in place.
        memory: its memory plan; None if XLA wrote none.
        captured: on CUDA, how many of its custom calls are in a command buffer; else None.
    """

    name: str
    before: str
    after: str
    calls_before: dict[str, int]
    calls: tuple[Call, ...]
    copies: tuple[Copy, ...]
    aliases: tuple[tuple[int, int], ...]
    memory: MemoryPlan | None
    captured: int | None

    def stablehlo(self) -> str:
        """The module before XLA optimised it, as StableHLO."""
        from pyxla.hlo import stablehlo

        return stablehlo(self.before)

    def missing(self) -> dict[str, int]:
        """How many custom calls of each target XLA removed: it merges equal calls and drops those that nobody reads."""
        left = Counter(self.calls_before) - Counter(call.target for call in self.calls)
        return dict(left)


def read_module(
    before: str,
    after: str,
    assignment: str = "",
    thunks: str | None = None,
    *,
    optional: Mapping[str, Collection[str]] | None = None,
) -> Module:
    """A module from the texts that XLA writes.

    Args:
        before: the module before optimisation.
        after: the module after it.
        assignment: the buffer assignment, or empty.
        thunks: XLA:CUDA's thunk sequence, or None.
        optional: target -> names of its attributes that are optional numbers: arrays of none or one element.
    """
    graph = Graph(after)
    texts = {call.name: call for call in hlo_text.custom_calls(after)}
    nodes = [node for node in graph.running if node.opcode in CALLS and node.name in texts]
    calls = tuple(_call(node, texts[node.name], graph, optional or {}) for node in nodes)
    name = re.match(r"HloModule ([^,\s]+)", after)
    return Module(
        name=name[1] if name else "",
        before=before,
        after=after,
        calls_before=dict(Counter(call.target for call in hlo_text.custom_calls(before))),
        calls=calls,
        copies=find_copies(after, {call.name: call.aliases for call in calls}),
        aliases=tuple(hlo_text.input_output_aliases(after)),
        memory=read_memory_plan(assignment),
        captured=hlo_text.captured_calls(thunks)[0] if thunks is not None else None,
    )


def _call(node: Node, text: hlo_text.CustomCall, graph: Graph, optional: Mapping[str, Collection[str]]) -> Call:
    shared = {int(result or 0): int(operand) for result, operand in re.findall(r"\{(\d*)\}: \((\d+)", text.aliasing)}
    shapes = arrays(node.shape)
    uses = graph.uses.get(node.name, [])
    outputs = [(output.node.name, output.index or 0) for output in graph.outputs]
    results = tuple(
        Result(
            shape=shape,
            operand=shared.get(i),
            readers=tuple(dict.fromkeys(_neighbour(use.node, graph) for index, use in uses if (index or 0) == i)),
            outputs=tuple(number for number, output in enumerate(outputs) if output == (node.name, i)),
        )
        for i, shape in enumerate(shapes)
    )
    operands = []
    for name, stated in zip(node.operands, (*text.operands, *[""] * len(node.operands)), strict=False):
        source = graph.source(name)
        operands.append(Operand(stated or _shape(source), _neighbour(source.node, graph) if source else None))
    absentable = optional.get(text.target, ())
    attributes = {
        name: (value[0] if value else None) if isinstance(value, list) and name in absentable else value
        for name, value in hlo_attributes.decode(text.attributes).items()
    }
    return Call(node.name, text.target, tuple(operands), results, attributes, text.api_version)


def _shape(source: Source | None) -> str:
    shapes = arrays(source.node.shape) if source else []
    return shapes[source.index or 0] if shapes else ""


def _neighbour(node: Node, graph: Graph) -> Neighbour:
    fused = dict.fromkeys(inner.opcode for inner in graph.body(node) if inner.opcode not in NOTHING)
    return Neighbour(node.name, node.opcode, tuple(fused), graph.parameters.get(node.name))
