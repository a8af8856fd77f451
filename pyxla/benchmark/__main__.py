"""Measures the benches of some ops, for `devtool bench`: `python -m pyxla.benchmark rms_norm --device cpu`.

Prints a line of JSON for each event: {"plan": ...}, {"device": ...}, {"tell": ...}, and last of all {"run": ...}, the
whole document; or {"problem": ...}. All other output, of XLA or a compiler, goes to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m pyxla.benchmark", description=__doc__.partition("\n")[0])
    parser.add_argument("ops", nargs="+", metavar="OP")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--case", action="append", default=[], dest="cases", metavar="NAME")
    parser.add_argument("--layer", action="append", default=[], dest="layers", choices=["raw", "xla", "peers"])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--list", action="store_true", help="print only the plan")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="time the libraries in FOLDER too")
    parser.add_argument("--against-name", default="other", metavar="NAME", help="what to call them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the document to FILE")
    options = parser.parse_args()
    os.environ["PJRT_DEVICE"] = options.device.upper()
    # Each layer chooses its implementation itself.
    os.environ.pop("PYXLA_IMPLEMENTATION", None)
    # torch's threads would spin between two calls and slow the other layers: make them sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with own_stdout() as channel, tempfile.TemporaryDirectory(prefix="pyxla-bench-") as folder:
        run(options, Path(folder), channel)


def own_stdout() -> TextIO:
    """The process's stdout for the events alone; all other output to stdout goes to stderr from now on."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel


def run(options: argparse.Namespace, folder: Path, channel: TextIO) -> None:
    """Measures what the options name and writes the events."""

    def send(**event: Any) -> None:
        channel.write(json.dumps(event) + "\n")
        channel.flush()

    from pyxla import hlo
    from pyxla.benchmark import Step, whole_step
    from pyxla.benchmark import run as runs
    from pyxla.errors import PyxlaError
    from pyxla.packages import split_name

    # Before XLA's first computation: the custom calls of a compiled step are counted in its module.
    if hlo.dump_folder() is None:
        hlo.dump_to(folder)
    folders = with_implementations(options.ops)
    plan = [(op, bench) for op in folders for bench in (*benches(op), *steps(op)) if options.device in bench.devices]
    if options.list:
        send(plan=[_planned(op, bench) for op, bench in plan])
        return
    known = sorted({bench.name for _, bench in plan})
    for name in options.cases:
        if name not in known:
            send(problem="case", name=name, known=known)
            return
    layers = options.layers or list(runs.LAYERS)
    plan = [(op, bench) for op, bench in plan if not options.cases or bench.name in options.cases]
    plan = [(op, bench) for op, bench in plan if "xla" in layers or not isinstance(bench, Step)]
    if not plan:
        send(problem="none")
        return
    against = bool(options.against)
    tells = [
        whole_step.tells_of(options.rounds, against)
        if isinstance(bench, Step)
        else runs.steps_of(bench, layers, options.rounds, len(folders[op]), against)
        for op, bench in plan
    ]
    send(plan=[_planned(op, bench) for op, bench in plan], steps=2 * runs.RATES + sum(tells))
    try:
        from pyxla.benchmark.cuda import cuda_device
        from pyxla.benchmark.host import HostDevice
        from pyxla.torch_ops.custom_op import find_op

        device = HostDevice() if options.device == "cpu" else cuda_device()
        send(device=device.about)
        document = {"schema": runs.SCHEMA, "rounds": options.rounds, **runs.environment(device)}
        rates = runs.rates(device, lambda what: send(tell=what))
        document["cases"] = []
        for folder in (name for op in folders for name in (op, *folders[op])):
            importlib.import_module(module_of(folder))
        for op, bench in plan:

            def tell(what: str, where: str = f"{split_name(op)[1]} {bench.name}") -> None:
                send(tell=f"{where}: {what}")

            shared = {"rounds": options.rounds, "tell": tell, "against": _other(op, options)}
            document["cases"].append({"against": options.against_name} if against else {})
            if isinstance(bench, Step):
                document["cases"][-1] |= whole_step.measure_step(find_op(op), bench, device, **shared)
                continue
            libraries = [split_name(folder)[1] for folder in folders[op]]
            beside = [i for i in find_op(op).implementations.values() if i.library in libraries]
            document["cases"][-1] |= runs.measure(
                find_op(op),
                bench,
                device,
                layers=layers,
                implementations=beside,
                **shared,
            )
        document["rates"] = runs.rates(device, lambda what: send(tell=what), rates)
    except PyxlaError as error:
        send(problem="pyxla", message=error.message, hint=error.hint)
        return
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    send(run=document)


def _planned(op: str, bench: Any) -> dict[str, Any]:
    """A bench or a step in the plan; of a step also the folders of the other ops that it calls."""
    from pyxla.packages import split_name

    return {"op": split_name(op)[1], "case": bench.name, "why": bench.why, "ops": getattr(bench, "ops", ())}


def _other(op: str, options: argparse.Namespace) -> tuple[str, Any] | None:
    """The name and the op's library of --against; None without it."""
    from pyxla.library.find import load_library
    from pyxla.packages import split_name

    if options.against is None:
        return None
    namespace, folder = split_name(op)
    return options.against_name, load_library(folder, options.against / f"lib{folder}.so", "other", namespace)


def with_implementations(names: list[str]) -> dict[str, list[str]]:
    """Op -> folders of the implementations to time with it: all of an op's, or those that are named.

    Args:
        names: folders of ops or implementations, with the namespace unless it is pyxla's own.
    """
    from pyxla.packages import package_of_folder, split_name

    found: dict[str, list[str]] = {}
    for name in names:
        namespace, folder = split_name(name)
        prefix = name.removesuffix(folder)
        package = package_of_folder(folder, namespace)
        folders = package.folders() if package else {}
        op = folders.get(folder) or folder
        named = [folder] if op != folder else [other for other in folders if folders[other] == op]
        found[prefix + op] = list(dict.fromkeys([*found.get(prefix + op, []), *(prefix + other for other in named)]))
    return found


def module_of(name: str, file: str | None = None) -> str:
    """The module of an op's folder."""
    from pyxla.errors import DefinitionError, mismatch
    from pyxla.packages import package_of_folder, split_name

    namespace, folder = split_name(name)
    package = package_of_folder(folder, namespace)
    if package is None:
        raise DefinitionError(mismatch("bench", "OP", "a folder of a kernel package", name))
    return package.module(folder, file)


def benches(op: str) -> list[Any]:
    """BENCHES of the op's cases.py; empty if there is no such list or file."""
    return _listed(op, "BENCHES")


def steps(op: str) -> list[Any]:
    """STEPS of the op's cases.py; empty if there is no such list or file."""
    return _listed(op, "STEPS")


def _listed(op: str, name: str) -> list[Any]:
    module = module_of(op, "cases")
    try:
        return list(getattr(importlib.import_module(module), name, []))
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return []


if __name__ == "__main__":
    main()
    sys.stdout.flush()
