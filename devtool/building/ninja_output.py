"""Filters the output of ninja: keeps the compilers' messages, drops the command lines."""

from __future__ import annotations

import re
import sys

import click

from devtool import project

_STEP = re.compile(r"\[(\d+/\d+)\] (.*)")
# CMake's output when an op folder was added or removed, so that it configures again.
_CHATTER = re.compile(r"-- .*|The following files were (added|removed):|  [+-]\S+|")
_OBJECT = re.compile(r"CMakeFiles/(?P<op>\w+)\.dir/(?P<source>\S+)\.o\b")
_LIBRARY = re.compile(r"lib(?P<op>\w+)\.so\b")


class NinjaOutput:
    """Takes ninja's lines; shows the compilers' messages on stderr at once and, on a terminal, the current step."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._step_shown = False
        self._skip_command = False
        self._failed: list[str] = []
        self._messages: list[str] = []
        self._ninja: list[str] = []
        # CMake names an object after the full path of its source, as the ops are outside the recipe's folder.
        self._kernels = str(project.kernels().resolve()).lstrip("/").replace(" ", "_").replace(":", "_") + "/"

    def __call__(self, line: str) -> None:
        if self._skip_command:
            self._skip_command = False
        elif step := _STEP.fullmatch(line):
            self._show_step(step)
        elif line.startswith("FAILED: "):
            # The next line is the command.
            self._failed.append(line.removeprefix("FAILED: "))
            self._skip_command = True
        elif line.startswith("ninja: "):
            self._ninja.append(line)
        elif self._failed or not _CHATTER.fullmatch(line):
            self.close()
            self._messages.append(line)
            click.echo(line, err=True)

    def close(self) -> None:
        """Removes the step from the terminal."""
        if self._step_shown:
            click.echo("\r\033[K", nl=False, err=True)
            self._step_shown = False

    def text(self) -> str:
        """All messages of the compilers and of ninja."""
        return "\n".join(self._messages + self._ninja)

    def blame(self) -> tuple[str, str]:
        """The op or ops that failed, and the reason, for an error's `got`."""
        objects = [match for target in self._failed if (match := _OBJECT.search(target))]
        links = [match for target in self._failed if (match := _LIBRARY.search(target))]
        ops = ", ".join(dict.fromkeys(match["op"] for match in objects + links))
        if objects:
            return ops, f"errors in {', '.join(dict.fromkeys(map(self._source, objects)))}"
        if links and any(line.startswith("CMake Error") for line in self._messages):
            return ops, "a library that fails a check"  # of pyxla/cmake/manifest.cmake
        if links:
            return ops, "errors while linking"
        errors = [line.removeprefix("ninja: ") for line in self._ninja if "error" in line]
        return "ninja", "; ".join(errors) or "an error that it did not explain"

    def _show_step(self, step: re.Match) -> None:
        if self._terminal:
            compiled, linked = _OBJECT.search(step[2]), _LIBRARY.search(step[2])
            what = self._source(compiled) if compiled else linked[0] if linked else step[2]
            click.echo(f"\r\033[K[{step[1]}] {what[:60]}", nl=False, err=True)
            self._step_shown = True

    def _source(self, compiled: re.Match) -> str:
        """The source of an object, relative to the folder of the ops."""
        return compiled["source"].removeprefix(self._kernels)
