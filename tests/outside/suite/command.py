"""The command line: python -m tests.outside.PROJECT FOLDER [--device CUDA] [--workers 12] [--json OUT] [--resume]."""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from tests.outside.suite import known
from tests.outside.suite.files import Misused, Suite
from tests.outside.suite.report import UNUSABLE, report
from tests.outside.suite.runner import Results, Runner


def arguments(suite: type[Suite], title: str, words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m tests.outside.{suite.project}", description=title)
    parser.add_argument("folder", type=Path, help=f"the source of {suite.project}")
    parser.add_argument("--device", choices=("CPU", "CUDA"), default="CPU", help="PJRT_DEVICE of the tests")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--seconds", type=float, default=3600, help="end after this time, with what there is")
    help_ = "seconds for one test, or for importing its file"
    parser.add_argument("--timeout", type=float, default=suite.timeout, help=help_)
    parser.add_argument("--json", type=Path, help="write the results to this file, after every process")
    parser.add_argument("--resume", action="store_true", help="run only what has no result in the file of --json")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="only files that match, such as '*dynamo*'")
    parser.add_argument("--known", type=Path, default=suite.folder / "known.toml", help="the list of known failures")
    suite.add_options(parser)
    return parser.parse_args(words)


def main(suite: type[Suite], title: str, words: list[str] | None = None) -> int:
    """Runs a project's tests.

    Args:
        suite: the project's.
        title: a line of help.
        words: of the command line; None: those of the process.

    Returns:
        The exit status.
    """
    options = arguments(suite, title, words)
    end = time.monotonic() + options.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        release = suite.installed_release()
        results = _read(suite.project, options, release)
        with tempfile.TemporaryDirectory(prefix=f"{suite.project}-tests-") as scratch:
            tests = suite(options, release, Path(scratch))
            left_out = Counter(filter(None, map(tests.left_out, tests.files())))
            files = [file for file in tests.files() if tests.left_out(file) is None]
            if options.only:
                files = [file for file in files if any(fnmatch(file, pattern) for pattern in options.only)]
            save = _writer(suite.project, options, release, results)
            tests.prepare([file for file in files if results.unknown(file) or results.left(file)])
            Runner(tests, results, save, end).run(files, options.workers)
    except Misused as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    entries = [entry for entry in known.read(options.known) if entry.applies(release, options.device)]
    return report(f"{suite.project} {release} on {options.device}", files, left_out, results, entries)


def _read(project: str, options: argparse.Namespace, release: str) -> Results:
    if not (options.resume and options.json and options.json.is_file()):
        return Results()
    kept = json.loads(options.json.read_text())
    run = kept.pop(project, "none"), kept.pop("device")
    if run != (release, options.device):
        expected, got = (" on ".join(pair) for pair in ((release, options.device), run))
        raise Misused(project, f"--json: expected results of {project} {expected}, got {got}", "name another file")
    return Results(**kept)


def _writer(project: str, options: argparse.Namespace, release: str, results: Results) -> Callable[[], None]:
    def write() -> None:
        if options.json:
            part = options.json.with_suffix(".part")
            part.write_text(json.dumps({project: release, "device": options.device} | asdict(results), indent=1))
            part.replace(options.json)

    write()
    return write
