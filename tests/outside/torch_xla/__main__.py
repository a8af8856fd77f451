"""Runs pytorch/xla's own tests and says what fails beside what is known to fail.

python -m tests.outside.torch_xla FOLDER [--device CUDA] [--workers 12] [--seconds 330] [--json OUT] [--resume]

FOLDER is a checkout of pytorch/xla at the tag of the installed torch_xla. Needs pytest, and what the tests import: a
file that cannot be imported is reported with the reason.
Exit status: 0 nothing new, 1 something new fails, 2 wrong arguments, 3 nothing new so far but some tests had no time.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from tests.outside.torch_xla import known
from tests.outside.torch_xla.checkout import Checkout, Misused, installed_release
from tests.outside.torch_xla.runner import Results, Runner

_KNOWN = Path(__file__).with_name("known.toml")
NEW, UNUSABLE, UNFINISHED = 1, 2, 3


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.torch_xla", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a checkout of pytorch/xla")
    parser.add_argument("--device", choices=("CPU", "CUDA"), default="CPU", help="PJRT_DEVICE of the tests")
    help_ = "of products in float32; by default as upstream: highest. With default the CUDA device takes TF32"
    parser.add_argument("--precision", choices=("default", "high", "highest"), default="highest", help=help_)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--seconds", type=float, default=3600, help="end after this time, with what there is")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one test, or for importing its file")
    parser.add_argument("--json", type=Path, help="write the results to this file, after every process")
    parser.add_argument("--resume", action="store_true", help="run only what has no result in the file of --json")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="only files that match, such as '*dynamo*'")
    parser.add_argument("--known", type=Path, default=_KNOWN, help="the list of known failures")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    end = time.monotonic() + options.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        release = installed_release()
        results = _read(options, release)
        with tempfile.TemporaryDirectory(prefix="torch-xla-tests-") as scratch:
            checkout = Checkout(options.folder, release, Path(scratch))
            left_out = Counter(filter(None, map(checkout.left_out, checkout.files())))
            files = [file for file in checkout.files() if checkout.left_out(file) is None]
            if options.only:
                files = [file for file in files if any(fnmatch(file, pattern) for pattern in options.only)]
            save = _writer(options, release, results)
            runner = Runner(checkout, options.device, options.precision, results, save, options.timeout, end)
            runner.run(files, options.workers)
    except Misused as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    entries = [entry for entry in known.read(options.known) if entry.applies(release, options.device)]
    return report(f"torch_xla {release} on {options.device}", files, left_out, results, entries)


def _read(options: argparse.Namespace, release: str) -> Results:
    if not (options.resume and options.json and options.json.is_file()):
        return Results()
    kept = json.loads(options.json.read_text())
    run = kept.pop("torch_xla"), kept.pop("device")
    if run != (release, options.device):
        expected, got = (" on ".join(pair) for pair in ((release, options.device), run))
        raise Misused(f"--json: expected results of torch_xla {expected}, got {got}", "name another file")
    return Results(**kept)


def _writer(options: argparse.Namespace, release: str, results: Results):
    def write() -> None:
        if options.json:
            part = options.json.with_suffix(".part")
            part.write_text(json.dumps({"torch_xla": release, "device": options.device} | asdict(results), indent=1))
            part.replace(options.json)

    write()
    return write


def report(title: str, files: list[str], left_out: Counter, results: Results, entries: list[known.Known]) -> int:
    """Prints what the results say and returns the exit status."""
    tests = {test for file in files for test in results.tests.get(file, ())}
    outcomes = {t: (r["outcome"], r["reason"]) for t, r in results.results.items() if t in tests}
    outcomes |= {file: ("uncollected", results.uncollected[file]) for file in files if file in results.uncollected}
    compared = known.compare(outcomes, entries)
    counts = Counter(outcome for outcome, _ in outcomes.values())
    print(f"{title}: {len(files)} files, " + ", ".join(f"{number} {name}" for name, number in counts.most_common()))
    for reason, number in left_out.items():
        print(f"left out: {number} files: {reason}")
    for entry, number in compared.known.items():
        print(f"known: {number} {entry.outcome}: {entry.test}: {entry.reason}")
    for entry in compared.mended:
        print(f"passes now, remove it from the list: {entry.test}: {entry.reason}")
    waiting = [file for file in files if results.unknown(file)]
    left = [test for file in files for test in results.left(file)]
    if not left and not waiting:
        for entry in compared.unmatched:
            print(f"matches no test: {entry.test}: {entry.reason}")
    for test, outcome, reason in compared.new:
        print(f"new: {outcome}: {test}: {reason}")
    if left or waiting:
        print(f"not run: {len(left)} tests, and all of {len(waiting)} files; go on with --resume")
    return NEW if compared.new else UNFINISHED if left or waiting else 0


if __name__ == "__main__":
    sys.exit(main())
