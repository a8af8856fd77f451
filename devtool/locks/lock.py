"""Makes the locks from the lists: uv resolves, requirements/*.txt are for pip, a file of wheels is for Nix."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import click

from devtool import project
from devtool.errors import DevtoolError, error_from
from devtool.files import replacing
from devtool.locks.lists import oldest_python, read_sets, read_settings
from devtool.locks.wheels import nix_view, read_pins
from devtool.processes import locate, run_lines

# The user's settings choose the index; a lock does not name it.
_NO_INDEX = ("--no-emit-index-url", "--no-emit-find-links", "--no-emit-index-annotation")
# Text in uv's output -> what went wrong, what to do. The first match counts: without a network, the output may also
# contain "No solution found".
_SYMPTOMS = (
    ("network was disabled|Network connectivity is disabled|Failed to fetch|Failed to download|error sending request",
     "no connection to the package index", "check the network and uv's settings; nothing was changed"),
    ("pyxla was not found in the package|no versions of pyxla\\b|only pyxla\\S+ is available and you require pyxla",
     "no pyxla of this version in the package index",
     "make its wheel in its checkout (pip wheel --no-deps -w ~/wheels .), then UV_FIND_LINKS=~/wheels devtool lock"),
    ("No solution found", "no solution", "change the versions in the lists; nothing was changed"),
)  # fmt: skip


def lock(*, upgrade: bool, check: bool) -> list[str]:
    """Makes all locks again and replaces those that differ, all or none; reports on stderr.

    Args:
        upgrade: take the newest versions that the lists allow, not those that are locked.
        check: replace nothing.

    Returns:
        The files that were replaced, as paths from the root.

    Raises:
        DevtoolError: uv failed, a package has no wheel, a file cannot be written, or `check` found a difference.
    """
    root = project.root()
    with tempfile.TemporaryDirectory(prefix="devtool-lock-") as folder:
        made = _make(root, Path(folder), upgrade)
    changed = {name: text for name, text in made.items() if _text(root / name) != text}
    if check and changed:
        message = f"lock: --check: expected nothing to change, got changes in {', '.join(changed)}"
        raise DevtoolError(message, "devtool lock --upgrade" if upgrade else "devtool lock")
    try:
        _replace(root, changed)
    except OSError as error:
        raise error_from("lock", error) from error
    return list(changed)


def _make(root: Path, folder: Path, upgrade: bool) -> dict[str, str]:
    """File -> its new text. uv works in a temporary folder, on copies: it keeps what an existing output locks."""
    settings, sets = read_settings(root), read_sets(root / "requirements")
    # Among them uv.toml: uv adds the settings in its folder to the user's own.
    shutil.copytree(root / "requirements", folder, dirs_exist_ok=True)
    # One lock for all Pythons, with one version of each package if possible. By default uv would use one on PATH.
    oldest = oldest_python(project.repository())
    resolve = ("--universal", "--fork-strategy", "fewest", "--python-version", oldest, "--python", sys.executable)
    for name in sets:
        click.echo(f"lock: resolving requirements/{name}.in", err=True)
        left_out = [word for package in settings.left_out.get(name, ()) for word in ("--no-emit-package", package)]
        options = (*resolve, *_NO_INDEX, *(["--upgrade"] if upgrade else []), "--generate-hashes", *left_out)
        _compile(folder, f"{name}.in", *options, "-o", f"{name}.txt", f"{name}.in")
    texts = {name: (folder / f"{name}.txt").read_text() for name in sets}
    for text in texts.values():
        read_pins(text)
    made = {f"requirements/{name}.txt": text for name, text in texts.items()}
    if settings.nix is None:
        return made
    pylocks = []
    of_nix = {name: text for name, text in texts.items() if name not in settings.without_nix}
    for name in of_nix:
        # The files of exactly these versions: the locks are complete, so nothing is left to resolve.
        _compile(folder, f"{name}.txt", *resolve, "--no-deps", "-o", "pylock.toml", f"{name}.txt")
        pylocks.append((folder / "pylock.toml").read_text())
    return made | {settings.nix: json.dumps(nix_view(of_nix, pylocks), indent=1, sort_keys=True) + "\n"}


def _compile(folder: Path, what: str, *arguments: str) -> None:
    """Runs `uv pip compile` in the folder; the comments in a lock are relative to it."""
    uv = locate("uv")
    if uv is None:
        message = f"lock: uv: expected it beside {sys.executable} or on PATH, got none"
        raise DevtoolError(message, "pip install uv; in a checkout of pyxla run bin/devtool")
    said: list[str] = []
    command = [uv, "--directory", str(folder), "pip", "compile", "--quiet", *arguments]
    status = run_lines(command, said.append, os.environ | {"UV_CUSTOM_COMPILE_COMMAND": "devtool lock"})
    if status == 0:
        return
    click.echo("\n".join(said), err=True)
    got, hint = next(
        ((got, hint) for pattern, got, hint in _SYMPTOMS if re.search(pattern, "\n".join(said))),
        (f"exit status {status}", "read uv's message; nothing was changed"),
    )
    raise DevtoolError(f"lock: requirements/{what}: expected uv to resolve it, got {got} (see above)", hint)


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _replace(root: Path, texts: dict[str, str]) -> None:
    """Writes all files next to their targets first: a full disk or a read-only folder shows before one is replaced."""
    with contextlib.ExitStack() as all_written:
        for name, text in texts.items():
            path = root / name
            path.parent.mkdir(exist_ok=True)
            all_written.enter_context(replacing(path)).write_text(text)
