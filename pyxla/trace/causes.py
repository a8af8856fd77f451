"""Why XLA compiled again: what differs between a graph and the one before it at the same place.

The modules are those that XLA writes when it compiles (--xla_dump_to), with the source line of each instruction
(XLA_HLO_DEBUG). Nothing is lowered or compiled for this.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyxla.hlo import text as hlo_text
from pyxla.packages import op_pattern
from pyxla.trace.places import Place, package_folders

_METADATA = re.compile(r", metadata=\{(?:[^{}\"]|\"[^\"]*\")*\}")
_NAME = re.compile(r"%[\w.\-]+|(?<=to_apply=)[\w.\-]+")
_ATTRIBUTE = re.compile(r", (?=[a-z_]+=)")
# Opcodes that only name or arrange values.
_NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "reshape", "broadcast", "bitcast"}
# Lines of pyxla are ignored: those of methods that the recorder replaced, and of what makes a custom call.
_OWN = package_folders(("pyxla",))
# The largest number of differences that are shown: a changed shape affects a whole graph.
_SHOWN = 4


@dataclass(frozen=True)
class Change:
    """One difference between two graphs.

    Attributes:
        kind: "parameter", "shape", "constant", "attribute" or "operations".
        what: what changed: a parameter, an instruction, or a count.
        before: the old value.
        after: the new value.
        place: the source line that made it.
        call: without such a line, the op of pyxla's that is or takes the instruction.
    """

    kind: str
    what: str
    before: str
    after: str
    place: Place | None = None
    call: str | None = None


class Instruction:
    """An instruction of a module without names, so that equal instructions have equal text.

    Args:
        instruction: the instruction as read from the module's text.
        positions: name -> position in the module, for the instructions before it.
    """

    def __init__(self, instruction: hlo_text.Instruction, positions: dict[str, int]):
        self.opcode, self.shape, line = instruction.opcode, instruction.shape, instruction.line
        file = re.search(r'source_file="([^"]*)"', line)
        number = re.search(r"source_line=(\d+)", line)
        known = file and number and Path(file[1]).is_absolute() and not file[1].startswith(_OWN)
        self.place: Place | None = (file[1], int(number[1])) if known else None
        op = re.search(r'(?:op_type|custom_call_target)="([^"]*)"', line)
        self.op = op[1].replace("__", "::") if op else self.opcode
        text = _METADATA.sub("", line).split(f" {self.opcode}(", 1)[-1]
        self.operands = [positions[n[1:]] for n in re.findall(r"%[\w.\-]+", text) if n[1:] in positions]
        self.text = _NAME.sub("%", text)
        own_op = op_pattern().fullmatch(self.op)
        self.call: str | None = own_op[1] if own_op and not known else None


class Module:
    """The parts of a module's text that matter here.

    Args:
        text: the module before XLA optimises it.
    """

    def __init__(self, text: str):
        self._text = text

    @cached_property
    def instructions(self) -> list[Instruction]:
        """All instructions, including those of called computations."""
        positions: dict[str, int] = {}
        found = []
        for instruction in hlo_text.instructions(self._text):
            found.append(Instruction(instruction, positions))
            positions[instruction.name] = len(positions)
        # An instruction without a line, such as an upload, gets the line of the first instruction that uses it.
        taken_by: dict[int, Instruction] = {}
        for position in range(len(found) - 1, -1, -1):
            instruction = found[position]
            if instruction.place is None and instruction.call is None and (user := taken_by.get(position)):
                instruction.place, instruction.call = user.place, user.call
            taken_by |= dict.fromkeys(instruction.operands, instruction)
        return found

    @cached_property
    def parameters(self) -> list[Instruction]:
        """The parameters of the entry computation, by their number."""
        called, _, _ = self._text.partition("\nENTRY ")
        found = [i for i in self.instructions[len(hlo_text.instructions(called)) :] if i.opcode == "parameter"]
        return sorted(found, key=lambda p: int(re.match(r"\d+", p.text)[0]))

    @cached_property
    def operations(self) -> int:
        """How many instructions compute something."""
        return sum(i.opcode not in _NO_WORK for i in self.instructions)

    def lines(self) -> Counter[tuple[Place | None, str]]:
        """How often each (line, op) occurs in the module."""
        return Counter((i.place, i.op) for i in self.instructions if i.opcode not in _NO_WORK)

    @property
    def custom_calls(self) -> list[hlo_text.CustomCall]:
        """The custom calls."""
        return hlo_text.custom_calls(self._text)


def changes(before: Module, after: Module) -> list[Change]:
    """The differences between `before` and `after`, causes first; differences that follow from them are left out."""
    found = _parameters(before, after)
    if [i.opcode for i in before.instructions] == [i.opcode for i in after.instructions]:
        # A shape comes before the constant that is one of its sizes.
        found += sorted(_instructions(before, after), key=lambda change: change.kind == "constant")
    else:
        found += _structure(before, after)
    # If several shapes change in the same way, the first one represents all.
    shapes = {(c.before, c.after): c for c in reversed(found) if c.kind in ("parameter", "shape")}
    found = [c for c in found if c.kind not in ("parameter", "shape") or shapes[c.before, c.after] is c]
    return list(dict.fromkeys(found))[:_SHOWN]


def _parameters(before: Module, after: Module) -> list[Change]:
    if len(before.parameters) != len(after.parameters):
        return []
    return [
        Change("parameter", f"parameter {number}", _plain(old.shape), _plain(new.shape), new.place, new.call)
        for number, (old, new) in enumerate(zip(before.parameters, after.parameters, strict=True))
        if old.shape != new.shape
    ]


def _instructions(before: Module, after: Module) -> list[Change]:
    """The instructions that differ although their operands do not."""
    found: list[Change] = []
    differs: list[bool] = []
    used = {position for instruction in after.instructions for position in instruction.operands}
    for number, (old, new) in enumerate(zip(before.instructions, after.instructions, strict=True)):
        own = (old.shape, old.text) != (new.shape, new.text)
        inherited = any(differs[i] for i in new.operands)
        differs.append(own or inherited)
        # A parameter of a called computation has the shape that the call passes.
        if not own or inherited or new.opcode == "parameter":
            continue
        if new.opcode == "constant":
            # torch_xla leaves sizes in the graph as constants that nothing uses.
            if old.shape == new.shape and number in used:
                pair = (old.text.partition(")")[0], new.text.partition(")")[0])
                found.append(Change("constant", f"constant of {new.op}", *pair, new.place, new.call))
        elif old.text != new.text:
            pair = _attributes(old.text, new.text)
            found.append(Change("attribute", f"attribute of {new.op}", *pair, new.place, new.call))
        else:
            pair = _plain(old.shape), _plain(new.shape)
            found.append(Change("shape", f"result of {new.op}", *pair, new.place, new.call))
    return found


def _attributes(old: str, new: str) -> tuple[str, str]:
    """The first attribute that differs, old and new."""
    pairs = zip(_ATTRIBUTE.split(old), _ATTRIBUTE.split(new), strict=False)
    return next(((_value(a), _value(b)) for a, b in pairs if a != b), (old, new))


def _value(attribute: str) -> str:
    config = re.fullmatch(r"backend_config=\{(.*)\}", attribute.strip())
    return config[1] if config else attribute.strip()


def _structure(before: Module, after: Module) -> list[Change]:
    old, new = before.lines(), after.lines()
    found = [Change("operations", "operations", str(before.operations), str(after.operations))]
    differing = sorted((set(old) | set(new)), key=lambda key: -abs(new[key] - old[key]))
    found += [
        Change("operations", f"{op}", f"{old[place, op]} times", f"{new[place, op]} times", place)
        for place, op in differing
        if old[place, op] != new[place, op]
    ]
    return found


def _plain(shape: str) -> str:
    return re.sub(r"\{[\d,]*\}", "", shape)
