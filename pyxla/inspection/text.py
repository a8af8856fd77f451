"""What XLA compiled, as readable text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyxla.hlo.buffer_assignment import MemoryPlan
from pyxla.hlo.copies import Copy
from pyxla.hlo.module import Call, Module, Neighbour, Result


def describe(modules: Iterable[Module], device: str) -> str:
    """A block per module: its custom calls, its copies, its memory.

    Args:
        modules: what XLA compiled.
        device: "CPU" or "CUDA".
    """
    return "\n\n".join("\n".join(_module(module, device)).rstrip() for module in modules)


def size(count: int) -> str:
    """Bytes in a suitable unit: 16384 is "16.0 KiB".

    Args:
        count: bytes.
    """
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"


def _module(module: Module, device: str) -> Iterator[str]:
    head = f"{module.name} on {device}: {_counted(len(module.calls), 'custom call')}"
    yield f"{head}, {_counted(len(module.copies), 'copy', 'copies')}"
    for target, count in module.missing().items():
        yield f"  {target}: {count} fewer than before: XLA merges equal calls and drops those that nobody reads"
    for call in module.calls:
        yield ""
        yield from _call(call)
    if module.copies:
        yield ""
        yield "  copies"
        yield from (f"    {_copy(copy)}" for copy in module.copies)
    yield ""
    if module.aliases:
        yield f"  in place  {', '.join(f'argument {a} becomes output {o}' for o, a in module.aliases)}"
    if module.memory:
        yield f"  memory    {_memory(module.memory)}"
    if module.captured is not None:
        yield f"  captured  {module.captured} of {_counted(len(module.calls), 'custom call')} in a command buffer"


def _call(call: Call) -> Iterator[str]:
    yield f"  {call.target}  ({call.name})"
    width = max((len(value.shape) for value in (*call.operands, *call.results)), default=0)
    for i, operand in enumerate(call.operands):
        yield f"    operand {i}  {operand.shape:{width}}  {_named(operand.source) if operand.source else ''}".rstrip()
    for i, result in enumerate(call.results):
        yield f"    result {i}   {result.shape:{width}}  {_goes_to(result)}"
    if call.attributes:
        yield f"    {', '.join(f'{name} = {value!r}' for name, value in call.attributes.items())}"


def _goes_to(result: Result) -> str:
    shared = [] if result.operand is None else [f"in the buffer of operand {result.operand}"]
    outputs = [f"output {number}" for number in result.outputs]
    return ", ".join([*shared, *outputs, *map(_named, result.readers)]) or "read by nothing"


def _named(neighbour: Neighbour) -> str:
    if neighbour.argument is not None:
        return f"argument {neighbour.argument}"
    return neighbour.name + (f" ({', '.join(neighbour.fused)})" if neighbour.fused else "")


def _copy(copy: Copy) -> str:
    place = f", {copy.place} of {copy.call}" if copy.call else ""
    return f"{copy.name} {copy.shape}, {size(copy.size)}{place}: {copy.reason}"


def _memory(plan: MemoryPlan) -> str:
    parts = {"arguments": plan.arguments, "outputs": plan.outputs, "temporaries": plan.temporaries}
    parts |= {"constants": plan.constants} if plan.constants else {}
    listed = ", ".join(f"{name} {size(count)}" for name, count in parts.items())
    in_place = f", of which {size(plan.in_place)} in place" if plan.in_place else ""
    return f"{size(plan.total)}: {listed.replace(',', in_place + ',', 1)}"


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
