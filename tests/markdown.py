"""Reads the project's Markdown: blocks, code spans, links and headings, for tests that compare it with the code."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conftest import ROOT

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: the language and the words after it, its text, and the line in the file."""

    words: tuple[str, ...]
    text: str
    line: int

    def commands(self) -> list[tuple[str, str]]:
        """(command, expected output) of a block whose commands begin with `$ `."""
        parts = re.split(r"^\$ (.*)\n?", self.text, flags=re.MULTILINE)
        assert not parts[0].strip(), f"line {self.line}: expected a command first, got {parts[0]!r}"
        return list(zip(parts[1::2], parts[2::2], strict=True))


class Page:
    """One Markdown file."""

    def __init__(self, path: Path):
        self.path = path
        self.text = path.read_text()
        self.prose = _FENCE.sub("", self.text)
        self.blocks = [
            Block(tuple(match["info"].split()), match["text"], self.text.count("\n", 0, match.start()) + 1)
            for match in _FENCE.finditer(self.text)
        ]
        # A span may continue on a second line; in a table a bar inside it is escaped.
        self.spans = [re.sub(r"\s+", " ", match[2]).replace("\\|", "|").strip() for match in _SPAN.finditer(self.prose)]
        self.links = _LINK.findall(_SPAN.sub("", self.prose))

    def anchors(self) -> set[str]:
        """The anchors that a link may name after #."""
        titles = re.findall(r"^#+ +(.+?) *$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    def __str__(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


@cache
def pages() -> tuple[Page, ...]:
    """All pages of the project."""
    paths = [*ROOT.glob("*.md"), ROOT / "kernels/README.md", *(ROOT / "docs").rglob("*.md")]
    return tuple(Page(path) for path in sorted(paths) if path.is_file())


def page(name: str) -> Page:
    """The page at this path."""
    return next(p for p in pages() if str(p) == name)


def matches(expected: str, got: str) -> bool:
    """Whether an output is as expected: `...` matches any text, and alone on a line also several lines."""
    lines = [line.rstrip() for line in expected.strip("\n").splitlines()]
    pattern = ""
    for line in lines:
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += re.escape(line).replace(r"\.\.\.", ".*") + r"[ \t]*\n"
    return re.fullmatch(rf"\n*{pattern}\n*", got + "\n") is not None
