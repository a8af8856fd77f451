"""The part of `devtool report` that runs ops: their schemas, and what XLA makes of a case.

One process runs all ops, because torch_xla takes seconds to import: `python -m devtool.report.live OP...`. It prints a
line of JSON when it begins an op and another when the op is done. So `probe` knows which op ended the process, and
continues with the others in a new one.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from devtool import project
from devtool.errors import DevtoolError
from devtool.processes import event_in, how_it_ended, run_lines


def probe(ops: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Op folder -> what `_op` found, or a `problem`."""
    found: dict[str, dict[str, Any]] = {}
    while waiting := [op for op in ops if op not in found]:
        begun: list[str] = []

        def read(line: str, begun: list[str] = begun) -> None:
            event = event_in(line)
            if "begin" in event:
                begun.append(event["begin"])
            elif "op" in event:
                found[event["op"]] = event

        with tempfile.TemporaryFile("w+", prefix="devtool-report-") as said:
            command = [sys.executable, "-P", "-m", "devtool.report.live", *waiting]
            status = run_lines(command, read, os.environ | {"LC_ALL": "C"}, project.root(), said)
            said.seek(0)
            last = said.read().strip().rpartition("\n")[2]
        end = how_it_ended(status) + f": {last}" * (status >= 0)
        # The op that it had begun; all that are left, if it had begun none.
        for op in [op for op in begun or waiting if op not in found]:
            found[op] = {"op": op, "problem": f"report: {op}: the process that runs the op {end}"}
    return found


def main(ops: Sequence[str]) -> None:
    """Prints what the page shows of each op; all other output goes to stderr."""
    # Before torch_xla is imported: otherwise it guesses the device, and prints that.
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    from pyxla.benchmark.__main__ import own_stdout

    with own_stdout() as channel:
        for op in ops:
            print(json.dumps({"begin": op}), file=channel, flush=True)
            print(json.dumps({"op": op} | _op(op)), file=channel, flush=True)


def _op(op: str) -> dict[str, Any]:
    """What the page shows of an op: `library`, `ops`, `hlo`; a `problem` replaces what is not available."""
    from devtool.building.inventory import library_state

    return {
        "library": _guarded(lambda: library_state(op)),
        "ops": _guarded(lambda: _ops(op)),
        "hlo": _guarded(lambda: _hlo(op)),
    }


def _guarded(take: Callable[[], Any]) -> Any:
    """What `take` returns, or what it raised: an op's files are its author's, and may raise anything."""
    try:
        return take()
    except Exception as error:
        text = str(error.message if isinstance(error, DevtoolError) else error).strip()
        message, _, hint = text.partition("\n\nhint: ")
        if ": expected " not in message:
            message = f"{type(error).__name__}: {message}"
        return {"problem": message.partition("\n")[0], "hint": hint}


def _ops(op: str) -> list[dict[str, str]]:
    """Schema and first paragraph of the docstring of each op that the folder's Python file declares."""
    from pyxla.torch_ops.custom_op import CustomOp

    module = importlib.import_module(project.module(op))
    return [
        {"name": o.name, "schema": f"{o.name}{o.schema.text}", "about": (inspect.getdoc(o) or "").partition("\n\n")[0]}
        for o in vars(module).values()
        if isinstance(o, CustomOp)
    ]


def _hlo(op: str) -> dict[str, Any]:
    """Picture and description of what XLA makes of the op's first case that has anything to compute."""
    from devtool.hlo.lowered import inspect_case, load_cases, select_case
    from devtool.hlo.svg import draw

    name = project.op_of_folder(op)
    case = select_case(name, load_cases(name), None)
    _, seen = inspect_case(name, case)
    picture, left_out = draw(seen.modules, "after")
    return {
        "case": case.name,
        "why": case.why,
        "device": seen.device,
        "picture": picture,
        "left_out": left_out,
        "text": str(seen),
        "calls": [call.target for call in seen.calls()],
        "copies": sum(len(module.copies) for module in seen.modules),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
