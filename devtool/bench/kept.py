"""The runs that docs/bench keeps, and the tables that docs/measurements.md shows of them.

docs/bench/<device>/<op>.json is the last kept run of an op on a device, in the form of `devtool bench --json`, but
smaller: five numbers (least, quartiles, greatest) replace the samples of a layer, with the same median and quartiles.
`devtool bench --load` shows it like any other run.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from devtool import project
from devtool.bench.table import duration, rate
from devtool.errors import DevtoolError, error_from
from devtool.files import write_atomic
from devtool.records.run_file import Case, Run, is_ours, parse_run, read_run, write_run

# The command writes between these lines of docs/measurements.md.
BEGIN, END = "<!-- devtool bench --table -->", "<!-- end of table -->"
_RUN = ("schema", "rounds", "date", "device", "versions", "load", "cold", "rates")
_CASE = ("op", "case", "bytes", "operations", "checked", "error", "refused")
_LAYER = ("name", "calls", "skipped", "refused")


def folder() -> Path:
    """The folder of the kept runs."""
    return project.root() / "docs/bench"


def keep(run: Run) -> list[Path]:
    """Keeps a run as a file for each op, which replaces an earlier one of the same device.

    Returns:
        The files.

    Raises:
        DevtoolError: a layer has wrong numbers, or a file cannot be written.
    """
    wrong = [c for c in run.cases if c.refused or any(layer.refused for layer in c.layers)]
    if wrong:
        message = f"bench: --table: expected a run with right numbers, got wrong ones in {wrong[0].op} {wrong[0].name}"
        raise DevtoolError(message, f"devtool test {wrong[0].op}")
    written = []
    for op in dict.fromkeys(case.op for case in run.cases):
        path = folder() / _slug(run.document["device"]["name"]) / f"{op}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise error_from("bench", error) from error
        write_run(path, parse_run(_trim(run.document, op)))
        written.append(path)
    return written


def read_kept() -> list[Run]:
    """All kept runs, by device and op.

    Raises:
        DevtoolError: a file is not a run.
    """
    return [read_run(path.relative_to(project.root()).as_posix(), path) for path in sorted(folder().glob("*/*.json"))]


def write_tables(document: Path) -> None:
    """Writes the tables of the kept runs between the markers of a Markdown file.

    Raises:
        DevtoolError: the file cannot be read or written, or it lacks the markers.
    """
    try:
        text = document.read_text()
        before, begin, rest = text.partition(f"{BEGIN}\n")
        _, end, after = rest.partition(f"{END}\n")
        if not (begin and end):
            message = f"bench: --table: expected {BEGIN} and {END}, a line each, got neither in {document.name}"
            raise DevtoolError(message, "git checkout docs/measurements.md")
        tables = "\n".join(markdown(read_kept()))
        write_atomic(document, f"{before}{begin}\n{tables}\n{end}{after}")
    except OSError as error:
        raise error_from("bench", error) from error


def markdown(runs: Sequence[Run]) -> Iterator[str]:
    """Lines of Markdown: for each device a table, and the runs that it shows."""
    for device in dict.fromkeys(run.device for run in runs):
        own = [run for run in runs if run.device == device]
        yield f"### {device}"
        yield ""
        yield "| op | shape | one call | % of the rate | in a row | baselines, one call |"
        yield "|---|---|---|---|---|---|"
        for run in own:
            for case in run.cases:
                for implementation in ("", *_implementations(case)):
                    op = f"{case.op}.{implementation}" if implementation else case.op
                    yield f"| {op} | {case.name} | " + " | ".join(_cells(case, implementation)) + " |"
        yield ""
        yield from _runs(own)
        yield ""


def _implementations(case: Case) -> list[str]:
    """Names of the implementations that were timed along with the op."""
    return [la.name.removesuffix(" raw") for la in case.lasting_layers if la.name.endswith(" raw") and la.seconds]


def _cells(case: Case, implementation: str) -> Iterable[str]:
    """The time of a call, its share of the rate, its time in a row and, for the op itself, the baselines' times."""
    raw, step = (case.layer(f"{implementation} {name}".strip()) for name in ("raw", "raw step"))
    if not raw and not implementation:
        step = case.layer("xla step")  # all that a graph of several ops has
    yield duration(raw.median) if raw else ""
    unit, rated = "copy" if case.bound == "copy" else "matrix", raw or step
    yield f"{case.floor / rated.median:.0%} of {unit}" if rated else ""
    yield duration(step.median) if step else ""
    baselines = [la for la in case.lasting_layers if la.seconds and not is_ours(la.name) and not implementation]
    yield ", ".join(f"{la.name} {duration(la.median)}" for la in baselines)


def _runs(runs: Sequence[Run]) -> Iterator[str]:
    """A line for each run: date, rates, versions and command."""
    for date in sorted({run.document["date"] for run in runs}):
        same = [run for run in runs if run.document["date"] == date]
        ops = " ".join(dict.fromkeys(case.op for run in same for case in run.cases))
        document = same[0].document
        versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
        rates = " and ".join(rate(same[0].rate(name), name) for name in ("copy", "matrix"))
        options = f"--device {document['device']['kind']} {_layers(same)}--rounds {document['rounds']}"
        yield f"- {date[:10]}, {rates}, {versions}: `devtool bench {ops} {options}`"


def _layers(runs: Sequence[Run]) -> str:
    names = {layer.name for run in runs for case in run.cases for layer in case.layers}
    groups = {"raw": "raw" in names, "xla": "xla step" in names, "peers": not all(map(is_ours, names))}
    return "" if all(groups.values()) else "".join(f"--layer {name} " for name, timed in groups.items() if timed)


def _trim(document: dict[str, Any], op: str) -> dict[str, Any]:
    cases = []
    for case in document["cases"]:
        if case["op"] != op:
            continue
        layers = [_pick(layer, _LAYER) | _summary(layer) for layer in case["layers"]]
        control = [_rounded(value) for value in _five(case["control"])]
        cases.append(_pick(case, _CASE) | {"layers": layers, "control": control})
    return _pick(document, _RUN) | {"cases": cases}


def _pick(entry: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: entry[name] for name in names if name in entry}


def _summary(layer: dict[str, Any]) -> dict[str, Any]:
    return {"seconds": [_rounded(value) for value in _five(layer["seconds"])]} if layer.get("seconds") else {}


def _five(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return list(values)
    return [min(values), *statistics.quantiles(values, n=4, method="inclusive"), max(values)]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
