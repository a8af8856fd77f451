"""`devtool list` and `devtool hlo`: what they show of ops in every state."""

import json
import os
import shutil
import subprocess

import pytest

from tests.devtool_tree import Tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("list"))
    result = tree.run("build", "simple_add")
    assert result.returncode == 0, result.stderr
    return tree


def listed(tree: Tree) -> dict[str, dict]:
    result = tree.run("list", "--json")
    assert result.returncode == 0, result.stderr
    return {entry["op"]: entry for entry in map(json.loads, result.stdout.splitlines())}


def test_built_and_not_built(tree):
    assert tree.run("new-op", "fresh").returncode == 0
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
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))  # or the next build would compile it again
    assert result.stdout.split()[-4:] == ["simple_add", "xla_gpu_simple_add", "Host", "stale"]
    assert result.stderr == "hint: devtool build simple_add\n"


@pytest.mark.parametrize("damage", ["cut short", "text", "another op's", "no table"])
def test_corrupt(tree, tmp_path, damage):
    library = tree.library("simple_add")
    whole, manifest = library.read_bytes(), library.with_suffix(".json").read_bytes()
    # Renamed into place: the file that is there may be mapped by another process.
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
        library.with_suffix(".json").unlink()  # which would say first that the bytes are others
        entry = listed(tree)[name]
    finally:
        library.write_bytes(whole)
        library.with_suffix(".json").write_bytes(manifest)
        shutil.rmtree(tree.kernels / "other", ignore_errors=True)
    assert entry["state"] == "corrupt" and entry["targets"] == []
    assert entry["reason"]


def test_hlo_shows_the_custom_call(tree):
    result = tree.run("hlo", "simple_add", "--case", "bf16-3x5")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("HloModule ") and "\033" not in result.stdout
    assert 'custom_call_target="xla_gpu_simple_add"' in result.stdout and "bf16[3,5]" in result.stdout
    assert result.stderr.endswith("hlo: 1 custom call: xla_gpu_simple_add\n")


def test_hlo_highlights_it_on_a_terminal(tree):
    if shutil.which("script") is None:
        pytest.skip("needs `script`")
    command = ["script", "-qec", " ".join(tree.command("hlo", "simple_add")), "/dev/null"]
    environment = tree.environment(TERM="xterm-256color")
    output = subprocess.run(command, cwd=tree.root, env=environment, capture_output=True, text=True).stdout
    highlighted = [line for line in output.splitlines() if "\033[1;36m" in line]
    assert len(highlighted) == 1 and "xla_gpu_simple_add" in highlighted[0]


def test_hlo_lists_the_cases(tree):
    result = tree.run("hlo", "simple_add", "--list")
    assert "bf16-3x5\tfewer elements than one vector\n" in result.stdout


def test_hlo_of_an_unknown_case(tree):
    result = tree.run("hlo", "simple_add", "--case", "bf16-3x6")
    assert result.returncode == 2
    assert "hlo: --case: expected one of cases.py (" in result.stderr and ", got bf16-3x6" in result.stderr
    assert result.stderr.endswith("\n\nhint: did you mean bf16-3x5?\n")


def test_hlo_of_an_op_without_cases(tree):
    tree.tiny_op("tiny")
    (tree.kernels / "tiny/__init__.py").touch()
    result = tree.run("hlo", "tiny")
    shutil.rmtree(tree.kernels / "tiny")
    assert result.returncode == 1
    assert result.stderr.endswith(
        "hlo: tiny: expected kernels/tiny/cases.py, got none\n\nhint: copy kernels/simple_add/cases.py and adapt it\n"
    )
