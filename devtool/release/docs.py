"""Runs Sphinx on docs/: strictly, and into a folder that is replaced as a whole."""

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


def make_pages(output: Path) -> Path:
    """Makes the pages and returns the first one.

    Args:
        output: a folder that does not exist, is empty, or contains earlier pages, which are replaced.

    Raises:
        DevtoolError: Sphinx is missing or found a mistake, or `output` contains something else; it does not change.
    """
    root = project.checkout("docs")
    if importlib.util.find_spec("sphinx") is None:
        raise DevtoolError("docs: sphinx: expected it beside this Python, got none", "run bin/devtool of the checkout")
    if output.exists() and not (output / _MARK).is_file() and (not output.is_dir() or any(output.iterdir())):
        message = f"docs: --output: expected a new folder or one with earlier pages, got {output}"
        raise DevtoolError(message, "name another folder, or remove this one")
    with tempfile.TemporaryDirectory(prefix="pyxla-docs-") as work:
        sources, pages = Path(work, "sources"), Path(work, "pages")
        sources.mkdir()
        command = [
            sys.executable,
            "-P",
            "-m",
            "sphinx",
            "--fail-on-warning",
            "--keep-going",
            "--nitpicky",
            "--no-color",
        ]
        said = _Sphinx(f"{sources}/")
        status = run_lines([*command, "-c", str(root / "docs"), str(sources), str(pages)], said, cwd=root)
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


class _Sphinx:
    """Takes Sphinx's lines: the last one is shown on a terminal, all are kept.

    Args:
        sources: the folder that Sphinx reads. It is removed from the lines, so that file names are as in docs/.
    """

    def __init__(self, sources: str):
        self._sources = sources
        self._lines: list[str] = []
        self._terminal = sys.stderr.isatty()

    def __call__(self, line: str) -> None:
        self._lines.append(line.replace(self._sources, ""))
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
