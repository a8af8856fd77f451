"""`devtool list`: its output for ops in every state."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.devtool_tree import Tree


def listed(tree: Tree) -> dict[str, dict]:
    result = tree.run("list", "--json")
    assert result.returncode == 0, result.stderr
    return {entry["op"]: entry for entry in map(json.loads, result.stdout.splitlines())}


def test_built_and_not_built(tree):
    tree.new_op("fresh")
    found = listed(tree)
    shutil.rmtree(tree.kernels / "fresh")
    built = found["simple_add"]
    assert (built["state"], built["targets"], built["platforms"]) == ("built", ["xla_gpu_simple_add"], ["Host"])
    assert built["library"] == str(tree.library("simple_add")) and built["compiler"]
    assert built["schema"] == "xla_gpu::simple_add(Tensor a, Tensor b, float alpha=1.) -> Tensor"
    fresh = found["fresh"]
    assert (fresh["state"], fresh["targets"], fresh["library"]) == ("not built", [], None)
    assert fresh["schema"] == "xla_gpu::fresh(Tensor x, float scale=1.) -> Tensor"


def test_table_says_the_state_in_words(tree):
    source = tree.kernels / "simple_add/simple_add.h"
    text, times = source.read_text(), source.stat()
    source.write_text(text + "// changed\n")
    result = tree.run("list")
    source.write_text(text)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))  # otherwise the next build would compile it again
    assert result.stdout.split()[-4:] == ["simple_add", "xla_gpu_simple_add", "Host", "stale"]
    assert result.stderr == "hint: devtool build simple_add\n"


def test_targets_are_whole_in_a_pipe():
    command = [sys.executable, "-P", "-m", "devtool", "list"]
    entries = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    targets = {target for entry in map(json.loads, entries) for target in entry["targets"]}
    assert "xla_gpu_rms_norm_triton" in targets and targets <= set(table.replace(",", "").split())


@pytest.mark.parametrize("damage", ["cut short", "text", "another op's", "no table"])
def test_corrupt(tree, tmp_path, damage):
    library = tree.library("simple_add")
    whole, manifest = library.read_bytes(), library.with_suffix(".json").read_bytes()
    # Renamed into place, because another process may have mapped the existing file.
    damaged = tmp_path / "damaged"
    if damage == "no table":
        (tmp_path / "empty.cc").touch()
        subprocess.run(["g++", "-shared", tmp_path / "empty.cc", "-o", damaged], check=True)
    else:
        content = {"cut short": whole[:5000], "text": b"not a library", "another op's": whole}[damage]
        damaged.write_bytes(content)
    name = "other" if damage == "another op's" else "simple_add"
    try:
        if name == "other":
            tree.tiny_op("other")
        damaged.replace(tree.library(name))
        library.with_suffix(".json").unlink()  # the manifest would report the changed bytes first
        entry = listed(tree)[name]
    finally:
        library.write_bytes(whole)
        library.with_suffix(".json").write_bytes(manifest)
        shutil.rmtree(tree.kernels / "other", ignore_errors=True)
    assert entry["state"] == "corrupt" and entry["targets"] == []
    assert entry["reason"]
