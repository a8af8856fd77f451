"""The JSON files in build/records that `devtool test`, `bench` and `profile` write for `devtool report`.

`test/<op>-<device>.json` is the last complete run of an op's tests; `bench/` has one file per run of `devtool bench`,
in the form of its --json; `profile/` the last profile of each case (devtool/profile/profile_file.py). All contain a
fingerprint of the sources that were run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from devtool import project
from devtool.errors import DevtoolError, error_from
from devtool.files import write_atomic
from devtool.records.run_file import Run, read_run

# The schema of a test run's file. If it changes, the code that reads the file must change too.
SCHEMA = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Tests:
    """A complete run of an op's tests.

    Attributes:
        date: when it ended, ISO 8601.
        device: "cpu" or "cuda", and its name.
        sources: fingerprint of the op's folder when it began.
        ended: how it ended early, or None.
        outcomes: the outcome of each test, by its name in the op's folder.
        checks: the records of pyxla.testing.
    """

    date: str
    device: str
    sources: str
    ended: str | None
    outcomes: dict[str, str]
    checks: list[dict[str, Any]]


def folder() -> Path:
    """The folder of the records."""
    return project.root() / "build/records"


def fingerprint(op: str) -> str:
    """SHA-256 over what a test or a bench of the op depends on: its files, what ops share, what pyxla brings; no notes.

    It covers more than pyxla.library.source_digest, which covers only the library. For an implementation it includes
    the op's files.
    """
    kernels, total = project.kernels(), hashlib.sha256()
    own = dict.fromkeys((op, project.implementations().get(op, op)))
    pyxla = project.pyxla_folder()
    files = [path for folder in (*own, "_*") for path in kernels.glob(f"{folder}/**/*")]
    named = [(path.relative_to(kernels).as_posix(), path) for path in files]
    recipe = [path for folder in ("include", "cmake") for path in pyxla.glob(f"{folder}/**/*")]
    named += [(f"pyxla/{path.relative_to(pyxla).as_posix()}", path) for path in recipe]
    for name, path in sorted(named):
        if path.is_file() and path.suffix not in (".md", ".pyc"):
            total.update(f"{name}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def keep_tests(
    sources: Mapping[str, str],
    status: int,
    device: Mapping[str, str],
    checks: Sequence[dict[str, Any]],
    outcomes: Mapping[str, str] | None,
) -> None:
    """Writes a record for each op; a failure to write is only reported on stderr, because the tests have run.

    Args:
        sources: op -> fingerprint of its folder.
        status: pytest's exit status, negative for a signal.
        device: its kind and, if known, its name.
        checks: the records of all ops' checks; `test` names the test.
        outcomes: the outcome of each test; None if pytest ended early.
    """
    ended = None
    if outcomes is None or status < 0:
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
    for op, digest in sources.items():
        inside = f"kernels/{op}/"
        own = {name.removeprefix(inside): o for name, o in (outcomes or {}).items() if name.startswith(inside)}
        if not own and not ended:
            continue  # an op without tests
        record = {
            "schema": SCHEMA,
            "op": op,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": device,
            "sources": digest,
            "ended": ended,
            "outcomes": own,
            "checks": [c | {"test": c["test"].removeprefix(inside)} for c in checks if c["test"].startswith(inside)],
        }
        write_record(folder() / "test" / f"{op}-{device['kind']}.json", record)


def keep_bench(run: Run) -> None:
    """Adds a run to the history; a failure to write is only reported on stderr."""
    digest = hashlib.sha256(json.dumps(run.document).encode()).hexdigest()
    write_record(folder() / "bench" / f"{run.document['date'].replace(':', '')}-{digest[:8]}.json", run.document)


def read_tests(op: str) -> tuple[list[Tests], list[str]]:
    """The last complete run of the op's tests on each device, and what is wrong with the other files."""
    found, problems = [], []
    for path in sorted((folder() / "test").glob(f"{op}-*.json")):
        where = f"report: {path.relative_to(project.root())}: expected a record that devtool test wrote"
        try:
            found.append(_tests(json.loads(path.read_bytes()), op))
        except OSError as error:
            problems.append(f"{where}, got {error.strerror}")
        except json.JSONDecodeError as error:
            problems.append(f"{where}, got invalid JSON: {error}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"{where} (schema {SCHEMA}), got another document: {error!r}")
    return found, problems


def read_benches() -> tuple[list[Run], list[str]]:
    """All saved runs, the oldest first, and what is wrong with files that are not runs."""
    return read_records("bench", read_run)


def read_records(name: str, read: Callable[[str, Path], T]) -> tuple[list[T], list[str]]:
    """What `read` makes of a folder's files, the oldest first, and what is wrong with the other files."""
    found, problems = [], []
    for path in sorted((folder() / name).glob("*.json")):
        try:
            found.append(read(path.relative_to(project.root()).as_posix(), path))
        except DevtoolError as error:
            problems.append(error.message.partition("\n")[0].replace(f"{project.root()}/", ""))
    return sorted(found, key=lambda record: record.document["date"]), problems


def _tests(document: dict[str, Any], op: str) -> Tests:
    if document["schema"] != SCHEMA or document["op"] != op:
        raise ValueError(f"schema {document['schema']} of {document['op']}")
    device = document["device"]
    name = f"{device['kind']}, {device['name']}" if "name" in device else device["kind"]
    for check in document["checks"]:
        for key in ("op", "case", "check", "test", "ok"):
            check[key]
        for key in ("share", "error", "allowed"):
            float(check.get(key, 0))
    datetime.fromisoformat(document["date"])
    outcomes = {str(test): str(outcome) for test, outcome in document["outcomes"].items()}
    return Tests(document["date"], name, document["sources"], document["ended"], outcomes, document["checks"])


def write_record(path: Path, document: dict[str, Any]) -> None:
    """Writes a record; a failure is only reported on stderr."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(document) + "\n")
    except OSError as error:
        error_from("record", error).show()
        click.echo(f"\ndevtool report will not show this run: {path} was not written", err=True)
