"""Runs one check of devtool doctor alone, and makes plugins for it to find."""

import subprocess
from pathlib import Path

from devtool.doctor.checks import OK, Doctor, Line


def one(doctor: Doctor, check: str) -> Line:
    return doctor.lines[check]


def with_torch() -> Doctor:
    """Runs one check without the earlier ones."""
    doctor = Doctor()
    doctor.lines["torch"] = Line("torch", OK, "")
    return doctor


def plugin(place: Path, code: str) -> Path:
    """A PJRT plugin of a few lines."""
    head = (
        "#include <cstddef>\n#include <cstdlib>\nstruct Api { size_t size; void* e; size_t vs; void* ve; int a, b; };"
    )
    (place / "plugin.cc").write_text(f"{head}\n{code}\n")
    command = ["g++", "-shared", "-fPIC", "-o", place / "plugin.so", place / "plugin.cc"]
    subprocess.run(command, check=True)
    return place / "plugin.so"
