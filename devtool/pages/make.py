"""Runs Sphinx: strictly, and into a folder that is replaced as a whole."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tempfile
from pathlib import Path

import click

from devtool import project
from devtool.errors import DevtoolError
from devtool.processes import run_lines

# A file that Sphinx writes to every folder of pages.
_MARK = ".buildinfo"
# The modules of the extra `docs`.
_NEEDED = ("sphinx", "furo", "myst_parser")


def make_pages(output: Path) -> Path:
    """Makes the pages and returns the first one.

    Args:
        output: a folder that does not exist, is empty, or contains earlier pages, which are replaced.

    Raises:
        DevtoolError: Sphinx is missing or found a mistake, or `output` contains something else; it does not change.
    """
    root = project.root()
    if output.exists() and not (output / _MARK).is_file() and (not output.is_dir() or any(output.iterdir())):
        message = f"docs: --output: expected a new folder or one with earlier pages, got {output}"
        raise DevtoolError(message, "name another folder, or remove this one")
    configuration = _configuration(root)
    with tempfile.TemporaryDirectory(prefix="pyxla-docs-") as work:
        sources, pages = Path(work, "sources"), Path(work, "pages")
        sources.mkdir()
        strictly = ("--fail-on-warning", "--keep-going", "--nitpicky", "--no-color")
        folders = ("-c", str(configuration), "-d", str(Path(work, "doctrees")), str(sources), str(pages))
        said = _Sphinx(f"{sources}/", first="docs/index.md" if (root / "docs/index.md").is_file() else "README.md")
        status = run_lines([sys.executable, "-P", "-m", "devtool.pages", *strictly, *folders], said, cwd=root)
        said.close()
        if status:
            click.echo("\n".join(said.messages()), err=True)
            message = f"docs: Sphinx failed (exit status {status}, see above)"
            raise DevtoolError(message, "fix what Sphinx names, then devtool docs")
        if output.exists():
            shutil.rmtree(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(pages, output)
    return output / "index.html"


def _configuration(root: Path) -> Path:
    """The folder of Sphinx's conf.py: docs/, if it has one, else this one.

    Raises:
        DevtoolError: a package is missing, there is no front page, or docs/conf.py does without this folder's.
    """
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            message = f"docs: {package}: expected it beside {sys.executable}, got none"
            raise DevtoolError(message, 'pip install "pyxla[docs]"; in a checkout of pyxla run bin/devtool')
    if not any((root / name).is_file() for name in ("README.md", "docs/index.md")):
        message = f"docs: README.md: expected it, as the first page, or docs/index.md in {root}, got neither"
        raise DevtoolError(message, "write one")
    own = root / "docs/conf.py"
    if not own.is_file():
        return Path(__file__).parent
    if "devtool.pages.conf" not in own.read_text(encoding="utf-8", errors="replace"):
        message = f"docs: docs/conf.py: expected one that builds on devtool's, got another in {root}"
        raise DevtoolError(message, "begin it with: from devtool.pages.conf import *")
    return own.parent


class _Sphinx:
    """Takes Sphinx's lines: the last one is shown on a terminal, all are kept.

    Args:
        sources: the folder that Sphinx reads. It is removed from the lines, so that file names are as in docs/.
        first: the file that is index.md there.
    """

    def __init__(self, sources: str, first: str):
        self._sources, self._first = sources, first
        self._lines: list[str] = []
        self._terminal = sys.stderr.isatty()

    def __call__(self, line: str) -> None:
        line = line.replace(self._sources, "")
        self._lines.append(re.sub(r"^index\.md(?=:)", self._first, line))
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r\033[K{self._lines[-1][:width]}", nl=False, err=True)

    def close(self) -> None:
        """Removes the line from the terminal."""
        if self._terminal:
            click.echo("\r\033[K", nl=False, err=True)

    def messages(self) -> list[str]:
        """What is wrong: the warnings, else the exception, else all lines."""
        found = [line for line in self._lines if re.search(r"\b(WARNING|ERROR|CRITICAL): ", line)]
        # If Sphinx stopped with an exception, its message follows its name.
        return found or [line.strip() for line in self._lines if re.match(r"\s*[\w.]+Error: ", line)] or self._lines
