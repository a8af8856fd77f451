"""Compares results with the failures that are known; the list is a known.toml."""

import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

BAD = ("failed", "crash", "hang", "uncollected")


@dataclass(frozen=True)
class Known:
    """A known failure: a pattern of ids (of files, if they cannot be collected), how it ends, and why.

    `says` is a part of what the failed test says; empty: anything. Empty releases or devices: all.
    """

    test: str
    outcome: str
    reason: str
    says: str = ""
    releases: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def applies(self, release: str, device: str) -> bool:
        return (not self.releases or release in self.releases) and (not self.devices or device in self.devices)

    def fits(self, test: str, outcome: str, words: str) -> bool:
        return self.outcome == outcome and self.says in words and fnmatchcase(test, self.test)


@dataclass
class Compared:
    """`new`: (id, outcome, words) of bad results that no entry has; `known`: their number per entry; `mended`:
    entries whose tests all pass now; `unmatched`: entries that match nothing that ran."""

    new: list[tuple[str, str, str]] = field(default_factory=list)
    known: dict[Known, int] = field(default_factory=dict)
    mended: list[Known] = field(default_factory=list)
    unmatched: list[Known] = field(default_factory=list)


def read(path: Path) -> list[Known]:
    """The entries of a list."""
    entries = []
    for entry in tomllib.loads(path.read_text()).get("known", ()):
        tests = entry["tests"]
        if entry["outcome"] not in BAD or not entry["reason"]:
            raise ValueError(f"{path}: {tests}: expected an outcome of {', '.join(BAD)} and a reason")
        rest = entry.get("says", ""), tuple(entry.get("releases", ())), tuple(entry.get("devices", ()))
        entries += [Known(test, entry["outcome"], entry["reason"], *rest) for test in tests]
    return entries


def compare(outcomes: dict[str, tuple[str, str]], entries: list[Known]) -> Compared:
    """Compares outcomes (id -> outcome, reason) with the entries that apply."""
    compared = Compared()
    for test, (outcome, words) in sorted(outcomes.items()):
        if outcome in BAD:
            entry = next((entry for entry in entries if entry.fits(test, outcome, words)), None)
            if entry is None:
                compared.new.append((test, outcome, words))
            else:
                compared.known[entry] = compared.known.get(entry, 0) + 1
    for entry in entries:
        if entry not in compared.known:
            matched = [outcome for test, (outcome, _) in outcomes.items() if fnmatchcase(test, entry.test)]
            if not matched:
                compared.unmatched.append(entry)
            elif all(outcome == "passed" for outcome in matched):
                compared.mended.append(entry)
    return compared
