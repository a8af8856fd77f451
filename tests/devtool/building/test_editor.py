"""clangd, as an editor runs it, takes the code of all ops with the commands that the build writes."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from devtool.building import build
from devtool.processes import locate
from tests.conftest import ROOT
from tests.devtool_tree import needs_nvcc

CUDA = sorted((ROOT / "kernels").glob("*/**/*.cu"))
HOST = sorted((ROOT / "kernels").glob("*/*_ffi.cc"))


@pytest.fixture(scope="module")
def commands():
    path = build.configure(build.for_cpu(build.Options()))
    assert re.search(rf"CompilationDatabase: {path.parent.relative_to(ROOT)}$", (ROOT / ".clangd").read_text(), re.M)
    return path


def complaints(file: Path, commands: Path) -> list[str]:
    """What clangd has against a file, without what its own refactorings cannot do."""
    command = [locate("clangd"), f"--check={file}", f"--compile-commands-dir={commands.parent}", "--log=error"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return [line for line in done.stderr.splitlines() if line.startswith("E[") and "tweak: " not in line]


@needs_nvcc
def test_each_file_has_a_command_that_clang_takes(commands):
    """nvcc's own options are not in it."""
    entries = {Path(entry["file"]): entry for entry in json.loads(commands.read_text())}
    assert {*CUDA, *HOST} <= entries.keys()
    for file in CUDA:
        words = entries[file]["arguments"]
        assert words[0] == "clang++" and not [w for w in words if re.match("-Xcompiler|--generate-code|-forward", w)]
        assert [word for word in words if word.startswith("--cuda-path=/")]


@pytest.mark.slow
@needs_nvcc
def test_clangd_takes_all_files(commands):
    found = {file.name: complaints(file, commands) for file in [*CUDA, *HOST]}
    assert {name: lines for name, lines in found.items() if lines} == {}


@needs_nvcc
def test_clangd_sees_a_mistake(commands, tmp_path):
    """In device code, with the command of its neighbour."""
    source = ROOT / "kernels/simple_add/simple_add.cu"
    wrong = tmp_path / "simple_add.cu"
    wrong.write_text(source.read_text() + "\n__device__ int wrong() { return threadIdx.w; }\n")
    entries = json.loads(commands.read_text())
    (entry,) = (entry for entry in entries if entry["file"] == str(source))
    changed = entry | {"file": str(wrong), "arguments": [*entry["arguments"][:-1], str(wrong)]}
    (tmp_path / "compile_commands.json").write_text(json.dumps([changed]))
    (line,) = complaints(wrong, tmp_path / "compile_commands.json")
    assert "no member named 'w'" in line
