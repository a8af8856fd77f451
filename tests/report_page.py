"""A tree with ops and records of every kind, and the page that `devtool report` makes of it, for the tests."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.devtool.profile.test_profile import real_profile
from tests.devtool.profile.test_sass import assemble
from tests.devtool_tree import Tree

OPS = ("bare", "dies", "empty", "raises", "simple_add")
NIXPKGS = "25.05.20251104.ca534a7 ca534a76c4afb2bdc07b681dbc11b453bab21af8"
# One op ends the process that inspects it; one only raises. `bare` was never built and has no Python file.
_DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
_RAISES = "raise ValueError('<b>no</b> cases & no luck')\n"
_EMPTY = "import torch, pyxla\n\n@pyxla.custom_op\ndef empty(x: torch.Tensor) -> torch.Tensor:\n    return x.clone()\n"
_BENCH = ("--device", "cpu", "--rounds", "2", "--layer", "raw", "--case", "f32-1024x4096")


@dataclass(frozen=True)
class Made:
    """The tree, the page, the output of the command that made it, and the command's processor time in seconds."""

    tree: Tree
    page: Path
    result: subprocess.CompletedProcess
    seconds: float

    @property
    def records(self) -> Path:
        return self.tree.root / "build/records"

    def tests(self, op: str = "simple_add") -> dict:
        """The record of the op's tests."""
        return json.loads((self.records / f"test/{op}-cpu.json").read_text())

    def bench(self) -> dict:
        """The newest run of a bench."""
        return newest_bench(self.records)


def newest_bench(records: Path) -> dict:
    return json.loads(max((records / "bench").glob("2*.json")).read_text())


def make(folder: Path) -> Made:
    """Tests and times simple_add, adds records of the previous day and other files, and makes the page."""
    tree = Tree(folder)
    for name, cases in (("bare", ""), ("dies", _DIES), ("empty", "CASES = []\n"), ("raises", _RAISES)):
        tree.tiny_op(name)
        if cases:
            (tree.kernels / name / "__init__.py").touch()
            (tree.kernels / name / "cases.py").write_text(cases)
    (tree.kernels / "empty/empty.py").write_text(_EMPTY)
    for arguments in (("test", "simple_add", "--device", "cpu"), ("bench", "simple_add", *_BENCH)):
        result = tree.run(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
    records = tree.root / "build/records"
    before = newest_bench(records) | {"date": "2026-01-02T03:04:05+00:00", "sources": {"simple_add": "0123456789"}}
    raw = before["cases"][0]["layers"][0]
    raw["seconds"] = [2 * seconds for seconds in raw["seconds"]]
    (records / "bench/2026-01-02T030405+0000-00000000.json").write_text(json.dumps(before))
    (records / "bench/foreign.json").write_text('{"schema": 1, "cases": "none"}')
    (records / "profile").mkdir()
    (records / "profile/simple_add-f32-1024x4096.json").write_text(json.dumps(real_profile()))
    (records / "profile/foreign.json").write_text('{"schema": 1, "op": "simple_add"}')
    (records / "test/bare-cpu.json").write_text('{"schema": 1, "op": "ba')
    (records / "test/raises-cpu.json").write_text('{"schema": 7, "op": "raises"}')
    # A library with machine code, independent of this machine's compilers.
    place = folder / "sass"
    place.mkdir()
    shutil.copy(assemble(place, "sm_80")[1], tree.library("raises"))
    # As if nixpkgs had built it.
    manifest = tree.library("simple_add").with_suffix(".json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"nixpkgs": NIXPKGS}))
    page, since = tree.root / "page.html", os.times()
    result = tree.run("report", "--output", str(page))
    now = os.times()
    assert result.returncode == 0, result.stderr
    seconds = now.children_user + now.children_system - since.children_user - since.children_system
    return Made(tree, page, result, seconds)
