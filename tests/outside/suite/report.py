"""Prints what the results say."""

from collections import Counter
from pathlib import PurePosixPath

from tests.outside.suite import known
from tests.outside.suite.runner import Results

NEW, UNUSABLE, UNFINISHED = 1, 2, 3


def report(title: str, files: list[str], left_out: Counter, results: Results, entries: list[known.Known]) -> int:
    """Prints what the results say and returns the exit status."""
    tests = {test for file in files for test in results.tests.get(file, ())}
    outcomes = {t: (r["outcome"], r["reason"]) for t, r in results.results.items() if t in tests}
    outcomes |= {file: ("uncollected", results.uncollected[file]) for file in files if file in results.uncollected}
    compared = known.compare(outcomes, entries)
    counts = Counter(outcome for outcome, _ in outcomes.values())
    print(f"{title}: {len(files)} files, " + _words(counts))
    for folder, numbers in _by_folder(outcomes).items():
        print(f"folder: {folder}: {_words(numbers)}")
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


def _words(counts: Counter) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())


def _by_folder(outcomes: dict[str, tuple[str, str]]) -> dict[str, Counter]:
    found: dict[str, Counter] = {}
    for test, (outcome, _) in sorted(outcomes.items()):
        folder = str(PurePosixPath(test.partition("::")[0]).parent)
        found.setdefault(folder, Counter())[outcome] += 1
    return found
