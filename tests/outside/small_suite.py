"""Runs the tests of another project, on a checkout of a few lines."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import ROOT


def written(folder: Path, files: Mapping[str, str]) -> Path:
    """The folder, with these files in it."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def run_suite(project: str, folder: Path, *options: object) -> subprocess.CompletedProcess:
    """Runs the project's tests in the folder, with the folder's list of known failures."""
    command = [sys.executable, "-m", f"tests.outside.{project}", folder, "--known", folder / "known.toml", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def outcomes(kept: Mapping, start: str) -> dict[str, str]:
    """The outcome of each test in the saved results, by its name without `start`."""
    return {test.removeprefix(start): result["outcome"] for test, result in kept["results"].items()}
