"""One raw call of an op on the GPU, for `devtool profile`: `python -m pyxla.benchmark.one_call OP --case NAME`.

Without --in-range it times the call and the device's own rates. With it, it makes the call once between the marks of
CUDA's profiler, after a call outside them. It prints one line of JSON: a record, {"unknown": case, "known": [...]}, or
{"problem": ..., "hint": ...}. All other output goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from pyxla.benchmark import Bench
from pyxla.errors import PyxlaError, mismatch
from pyxla.library.find import Library, load_library
from pyxla.packages import split_name
from pyxla.pjrt import driver
from pyxla.testing.case import Case, cases_of
from pyxla.testing.device_memory import call_in
from pyxla.testing.direct_call import in_order, without_data
from pyxla.torch_ops.custom_op import CustomOp, find_op
from pyxla.torch_ops.implementation import Implementation

_ROUNDS = 20


def main() -> None:
    """Runs the command line."""
    from pyxla.benchmark.__main__ import own_stdout

    parser = argparse.ArgumentParser(prog="python -m pyxla.benchmark.one_call", description=__doc__.partition("\n")[0])
    parser.add_argument("op", metavar="OP", help="an op, or an implementation: rms_norm.triton")
    parser.add_argument("--case", metavar="NAME", help="a bench or a case of its cases.py")
    parser.add_argument("--library", type=Path, metavar="FILE", help="the library to call")
    parser.add_argument("--in-range", action="store_true", help="make the call for a profiler, time nothing")
    parser.add_argument("--list", action="store_true", help="print only the names and reasons of the cases")
    options = parser.parse_args()
    os.environ["PJRT_DEVICE"] = "CPU" if options.list else "CUDA"
    with own_stdout() as channel:
        try:
            record = _run(options)
        except PyxlaError as error:
            record = {"problem": error.message, "hint": error.hint}
        print(json.dumps(record), file=channel)


def inputs_of(op: CustomOp) -> list[Bench | Case]:
    """The inputs of an op: its benches for a GPU, which are as large as a user's, then the cases of its tests."""
    from pyxla.benchmark.__main__ import benches

    # An op's benches are those of the folder's own op, and of what implements it.
    home = op.op if isinstance(op, Implementation) else op
    own = benches(f"{home.namespace}::{home.library}") if home.name == home.library else []
    return [*(bench for bench in own if "cuda" in bench.devices), *cases_of(op)]


def select_input(op: CustomOp, name: str | None) -> Bench | Case | None:
    """The input of this name, or the first one that has anything to compute; None: there is none."""
    return next((each for each in inputs_of(op) if (each.name == name if name else _computes(op, each))), None)


def _computes(op: CustomOp, case: Bench | Case) -> bool:
    arguments = case.arguments()
    results = op.infer_results(without_data(in_order(op, arguments)))
    return any(tensor.numel() for tensor in (*results, *(arguments[a.name] for a in op.schema.mutated)))


def _run(options: argparse.Namespace) -> Any:
    op = find_op(options.op)
    if options.list:
        return [{"name": each.name, "why": each.why} for each in inputs_of(op)]
    case = select_input(op, options.case)
    if case is None:
        return {"unknown": options.case or "none", "known": [each.name for each in inputs_of(op)]}
    namespace, _ = split_name(options.op)
    library = load_library(op.library, options.library, "other", namespace) if options.library else None
    return _in_range(op, case, library) if options.in_range else _timed(op, case, library)


def _timed(op: CustomOp, case: Bench | Case, library: Library | None) -> dict[str, Any]:
    """The record of a case: what it must move and do, how long a call takes, what the device reaches."""
    from pyxla.benchmark import run
    from pyxla.benchmark.cuda import cuda_device
    from pyxla.benchmark.layers import Single, warm_up

    device, arguments = cuda_device(), case.arguments()
    call = call_in(device, op, arguments, device.platform, library=library)
    device.run(call.launch)
    layer = Single("raw", device.how, device, device.bind([call.launch]))
    warm_up(layer)
    for _ in range(_ROUNDS):
        layer.measure()
    # Only a bench declares them: a case does not say which part of its operands a call reads.
    least = {}
    if isinstance(case, Bench):
        least = {"bytes": int(case.bytes(arguments)), "operations": int(case.operations(arguments))}
    record = {"op": op.display_name, "case": case.name, "why": case.why, **least, "seconds": layer.samples()}
    return record | run.environment(device) | {"rates": run.rates(device, lambda what: None)}


def _in_range(op: CustomOp, case: Bench | Case, library: Library | None) -> dict[str, Any]:
    from pyxla.benchmark.cuda import cuda_device

    device = cuda_device()
    call = call_in(device, op, case.arguments(), device.platform, library=library)
    # The first launch of a kernel loads its code.
    device.run(call.launch)
    _mark("cuProfilerStart")
    device.run(call.launch)
    _mark("cuProfilerStop")
    return {"op": op.display_name, "case": case.name}


def _mark(function: str) -> None:
    if status := getattr(driver.load(), function)():
        raise PyxlaError(mismatch("profile", function, "CUDA_SUCCESS", f"error {status}"), "devtool doctor")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
