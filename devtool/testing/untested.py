"""What a run without failures has not tested: the lines of a stub that nobody replaced, and CUDA code without a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from devtool import project

# What devtool new-op writes where the author has to go on (devtool/scaffold/template).
_MARK = re.compile(r'\breplace: (.*?)(?:""")?$')
_CUDA_SOURCES = ("*.cu", "triton_kernels.py")


def stub_lines(ops: Sequence[str]) -> list[str]:
    """A heading and a line for each `replace:` of a stub that is still in these folders; empty if there is none."""
    marks = []
    for op in ops:
        for path in sorted((project.kernels() / op).glob("*.*")):
            text = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
            found = [(number, match[1]) for number, line in enumerate(text, 1) if (match := _MARK.search(line))]
            where = path.relative_to(project.root())
            marks += [f"  {where}:{number}: {what}" for number, what in found]
    if not marks:
        return []
    stubs = ", ".join(dict.fromkeys(mark.split("/")[1] for mark in marks))
    return [f"stub: {stubs}: still to be replaced ({len(marks)}):", *marks]


def cuda_lines(
    ops: Sequence[str], named: Sequence[str], sanitize: str | None, checks: Sequence[dict[str, Any]], reason: str
) -> list[str]:
    """What a run on the CPU says about the ops' CUDA code.

    Args:
        ops: folders whose tests ran.
        named: those that the user named, for the command that compiles the code.
        sanitize: of which build the libraries are.
        checks: records; `cuda_handler` of a raw call says that the CUDA handler was called up to its launch.
        reason: why none of it ran.
    """
    states: dict[tuple, list[str]] = {}
    for op in (op for op in ops if any(list((project.kernels() / op).glob(name)) for name in _CUDA_SOURCES)):
        state = _architectures(op, sanitize), _handler_was_called(op, checks)
        states.setdefault(state, []).append(op)
    lines = []
    sizes = sorted(map(len, states.values()), reverse=True)
    for (architectures, called), own in sorted(states.items(), key=lambda state: -len(state[1])):
        # Most ops are alike: only the others are named.
        is_usual = len(sizes) == 1 or len(own) > sizes[1]
        where = "CUDA" if is_usual else f"CUDA: {', '.join(own)}"
        if not architectures:
            command = " ".join(["devtool build", *(own if named or not is_usual else ()), "--cuda on"])
            lines.append(f"{where}: not compiled: {command} compiles it")
            continue
        count = f"{len(architectures)} architecture" + "s" * (len(architectures) > 1)
        until = ", handlers called up to the launch" if called else ""
        lines.append(f"{where}: compiled for {count} ({', '.join(architectures)}){until}, not run: {reason}")
    return lines


def _architectures(op: str, sanitize: str | None) -> tuple[str, ...]:
    """Each once: code for a GPU and PTX for later ones (100-real, 100-virtual) are of one architecture."""
    manifest = project.library(op, sanitize).with_suffix(".json")
    listed = json.loads(manifest.read_text())["cuda_architectures"] if manifest.is_file() else ()
    return tuple(dict.fromkeys(name.partition("-")[0] for name in listed))


def _handler_was_called(op: str, checks: Sequence[dict[str, Any]]) -> bool:
    raw = [check for check in checks if check["check"] == "raw" and check["test"].startswith(f"kernels/{op}/")]
    return bool(raw) and all(check.get("cuda_handler") for check in raw)
