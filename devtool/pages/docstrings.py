"""Docstrings in Google's style with several names on one line, for napoleon, which knows one."""

from __future__ import annotations

import re


def split_names(lines: list[str]) -> list[str]:
    """The lines of a docstring with an entry for each name."""
    found: list[str] = []
    names: list[str] = []
    entry: list[str] = []
    for line in [*lines, ""]:
        inside = names and line.startswith("     ")
        if not inside:
            for other in names:
                found += [f"    {other}: {entry[0]}", *entry[1:]]
            names = []
        if inside:
            entry.append(line)
        elif match := re.fullmatch(r"    ((?:\w+, )+\w+): (.*)", line):
            names, entry = match[1].split(", "), [match[2]]
        else:
            found.append(line)
    return found[:-1]
