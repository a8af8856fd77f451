"""Times several builds of one op side by side, for `devtool tune`: `python -m pyxla.benchmark.variants rms_norm`.

Prints a line of JSON for each event, as `python -m pyxla.benchmark` does. The op's folder has a file tuning.py, whose
function `key` gives the numbers by which the kernel chooses, from the arguments of a bench.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pyxla.benchmark import Arguments, Bench
from pyxla.benchmark.__main__ import benches, module_of, own_stdout


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m pyxla.benchmark.variants", description=__doc__.partition("\n")[0])
    parser.add_argument("op", metavar="OP")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--library", action="append", required=True, dest="libraries", metavar="NAME=FILE")
    options = parser.parse_args()
    os.environ["PJRT_DEVICE"] = options.device.upper()
    os.environ.pop("PYXLA_IMPLEMENTATION", None)
    # torch's threads would spin between two calls and slow the handlers: make them sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with own_stdout() as channel:
        _run(options, channel)


def _run(options: argparse.Namespace, channel: TextIO) -> None:
    def send(**event: Any) -> None:
        channel.write(json.dumps(event) + "\n")
        channel.flush()

    from pyxla.benchmark import run as runs
    from pyxla.benchmark.cuda import cuda_device
    from pyxla.benchmark.host import HostDevice
    from pyxla.errors import PyxlaError
    from pyxla.library.find import load_library
    from pyxla.packages import split_name
    from pyxla.torch_ops.custom_op import find_op

    plan = [bench for bench in benches(options.op) if options.device in bench.devices]
    names = dict(pair.split("=", 1) for pair in options.libraries)
    steps = len(plan) * (1 + len(names) + options.rounds)
    send(plan=[{"op": options.op, "case": bench.name, "why": bench.why} for bench in plan], steps=steps)
    if not plan:
        return
    try:
        device = HostDevice() if options.device == "cpu" else cuda_device()
        importlib.import_module(module_of(options.op))
        key = importlib.import_module(module_of(options.op, "tuning")).key
        namespace, folder = split_name(options.op)
        libraries = {name: load_library(folder, Path(file), "other", namespace) for name, file in names.items()}
        document = {"rounds": options.rounds, **runs.environment(device), "cases": []}
        for bench in plan:

            def tell(what: str, where: str = f"{folder} {bench.name}") -> None:
                send(tell=f"{where}: {what}")

            tell("input and reference")
            arguments = bench.arguments()
            record = time_variants(find_op(options.op), bench, arguments, device, libraries, options.rounds, tell)
            document["cases"].append({"case": bench.name, "key": key(**arguments), **record})
    except PyxlaError as error:
        send(problem="pyxla", message=error.message, hint=error.hint)
        return
    send(run=document)


def time_variants(
    op: Any, bench: Bench, arguments: Arguments, device: Any, libraries: Mapping[str, Any], rounds: int, tell: Any
) -> dict[str, dict[str, Any]]:
    """Checks the numbers of each library on a bench, then times the right ones in turns, in the same memory.

    Args:
        op, bench: the op and its bench.
        arguments: the bench's, on the CPU.
        device: HostDevice or one of cuda.py.
        libraries: name -> a library of the op.
        rounds: samples of each library.
        tell: called with what is done next, once for each library and each round.

    Returns:
        "seconds": name -> the seconds of a call with cold caches, one for each round; "refused": name -> why it is not
        timed; "error": name -> the worst error as a share of the allowed one.
    """
    from pyxla.benchmark.check import Expected
    from pyxla.benchmark.layers import Raw, warm_up
    from pyxla.benchmark.run import first_line
    from pyxla.errors import LibraryError, PyxlaError

    expected = _Once(Expected(op, bench, arguments, device.peers))
    raw, right, refused, errors = None, {}, {}, {}
    for name, library in libraries.items():
        tell(name)
        try:
            checked = Raw(op, arguments, device, expected, library)
        except LibraryError:
            raise
        except (AssertionError, PyxlaError) as error:
            refused[name] = first_line(error)
            continue
        # The others' memory is free again before the next is checked.
        raw = raw or checked
        right[name], errors[name] = library, checked.error
    timed = [raw.single_of(name, library) for name, library in right.items()]
    for layer in timed:
        warm_up(layer)
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        for layer in _in_turns(timed, number):
            layer.measure()
    return {"seconds": {layer.name: layer.samples() for layer in timed}, "refused": refused, "error": errors}


class _Once:
    """Compares no results twice: many variants compute the same numbers, and to compare large ones takes seconds."""

    def __init__(self, expected: Any):
        self._expected, self._right = expected, []

    def compare(self, outputs: Sequence[Any]) -> float:
        """As Expected.compare."""
        import torch

        for known, error in self._right:
            if all(map(torch.equal, outputs, known)):
                return error
        error = self._expected.compare(outputs)
        self._right.append((list(outputs), error))
        return error


def _in_turns(timed: Sequence[Any], number: int) -> Sequence[Any]:
    """The order of a round: each layer is the first in its turn, and follows one neighbour, then the other."""
    turn, backwards = number % max(1, len(timed)), number % 2
    order = [*timed[turn:], *timed[:turn]]
    return order[::-1] if backwards else order


if __name__ == "__main__":
    main()
