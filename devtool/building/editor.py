"""build/compile_commands.json for clangd: CMake's commands, those of nvcc as clang's, which knows other options.

A warning of clang's that the build's compiler does not have is no error.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from devtool.files import write_atomic

# The editor shows the code of one architecture: the one with the most of it.
_ARCHITECTURE = "sm_90a"
# The newest release of CUDA that clang knows whole; it takes the headers of later ones.
_KNOWN_CUDA = "12.9"
# clang's own header of CUDA includes it, and only the whole toolkit has it.
_ABSENT = "curand_mtgp32_kernel.h"


def write_commands(cmake: Path, nvcc: str | None) -> Path:
    """Writes the file beside CMake's folder.

    Args:
        cmake: the folder in which CMake works.
        nvcc: the CUDA compiler, or None.

    Returns:
        The file.
    """
    headers = cmake.parent / "clangd"
    headers.mkdir(exist_ok=True)
    (headers / _ABSENT).touch()
    commands = json.loads((cmake / "compile_commands.json").read_text())
    toolkit = _toolkit(nvcc) if nvcc else None
    cuda = [bool(toolkit) and entry["file"].endswith(".cu") for entry in commands]
    made = [
        _for_clang(entry, toolkit, headers) if is_cuda else entry | {"command": f"{entry['command']} -Wno-error"}
        for entry, is_cuda in zip(commands, cuda, strict=True)
    ]
    path = cmake.parent / "compile_commands.json"
    write_atomic(path, json.dumps(made, indent=1))
    return path


def _toolkit(nvcc: str) -> str | None:
    """The folder of CUDA: nvcc may be a link, or a script that calls another one."""
    done = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False)
    found = re.search(r"^#\$ TOP=(.+)$", done.stderr, re.MULTILINE)
    return os.path.realpath(found[1]) if found else None


def _for_clang(entry: dict[str, Any], toolkit: str, headers: Path) -> dict[str, Any]:
    words = shlex.split(entry["command"])
    kept = [word for word in words if word.startswith(("-D", "-I"))]
    system = [words[i + 1] for i, word in enumerate(words) if word == "-isystem"]
    arguments = [
        "clang++", "-x", "cuda", f"--cuda-gpu-arch={_ARCHITECTURE}", f"--cuda-path={toolkit}", "-nocudalib",
        "-Wno-unknown-cuda-version", "-Xclang", f"-target-sdk-version={_KNOWN_CUDA}", "-std=c++20", *kept,
        *(f"-isystem{folder}" for folder in (*system, headers)), entry["file"],
    ]  # fmt: skip
    return {"directory": entry["directory"], "file": entry["file"], "arguments": arguments}
