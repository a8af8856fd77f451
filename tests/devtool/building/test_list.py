"""`devtool list OP`, and the architectures under the table of `devtool list`."""

import json
import os
import shutil
import subprocess
import sys

from devtool.building.inventory import print_inventory
from devtool.building.op_details import detailed, print_details
from devtool.hlo.lowered import load_cases
from pyxla.library import find
from tests.conftest import ROOT
from tests.devtool_tree import Tree


def list_in_checkout(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-P", "-m", "devtool", "list", *arguments]
    # `devtool test` preloads the libraries, which is another state.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_architectures_of_the_cuda_code(capsys):
    """A line for those that most ops have, and one with the names of the others; none without CUDA code."""

    def entry(op: str, *architectures: str) -> dict:
        platforms = ["Host", "CUDA"] if architectures else ["Host"]
        found = {"op": op, "implements": None, "targets": [f"xla_gpu_{op}"], "platforms": platforms, "state": "built"}
        return found | {"architectures": list(architectures)}

    both = ("90a-real", "100-real", "100-virtual")
    print_inventory([entry("a", *both), entry("b", *both), entry("c", "80-real"), entry("d")])
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "CUDA code: sm_90a, sm_100, PTX of sm_100",
        "CUDA code: sm_80: c",
    ]
    print_inventory([entry("d")])
    assert "CUDA code" not in capsys.readouterr().out


def test_list_of_one_op():
    result = list_in_checkout("simple_add")
    assert (result.returncode, result.stderr) == (0, "")
    schema = "simple_add(Tensor a, Tensor b, float alpha=1.0) -> Tensor"
    lines = result.stdout.splitlines()
    assert lines[:3] == ["simple_add", f"  schema     {schema}", "  target     xla_gpu_simple_add"]
    assert lines[3] == f"  cases      {len(load_cases('simple_add'))}"
    assert "  state      built" in lines and "  library    build/lib/libsimple_add.so" in lines
    files = {path.name for path in (ROOT / "kernels/simple_add").iterdir() if path.is_file()}
    assert files <= set(result.stdout.replace(",", " ").split()) and max(map(len, lines)) <= 80


def test_list_of_an_op_says_which_nixpkgs_built_it(tmp_path, monkeypatch, capsys):
    for suffix in ("so", "json"):
        shutil.copy(ROOT / f"build/lib/libsimple_add.{suffix}", tmp_path)
    manifest = tmp_path / "libsimple_add.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"nixpkgs": "25.05.20251104.ca534a7 ca534a76"}))
    library = manifest.with_suffix(".so"), "checkout"
    found = find.library_path
    monkeypatch.setattr(
        find, "library_path", lambda op, namespace: library if op == "simple_add" else found(op, namespace)
    )
    entries = detailed(["simple_add", "rms_norm"])
    print_details(entries)
    assert [entry["nixpkgs"] for entry in entries] == ["25.05.20251104.ca534a7 ca534a76", None]
    assert capsys.readouterr().out.count("  nixpkgs    25.05.20251104.ca534a7 ca534a76\n") == 1


def test_list_of_ops_by_any_of_their_names():
    """Folders, an op of another op's folder, an implementation; an op comes with its implementations, each once."""
    output = list_in_checkout("paged_attention_lse", "rms_norm.triton", "rms_norm", "--json").stdout
    found = {entry["op"]: entry for entry in map(json.loads, output.splitlines())}
    assert list(found) == ["paged_attention", "paged_attention_flashinfer", "rms_norm_triton", "rms_norm"]
    assert [op["name"] for op in found["paged_attention"]["ops"]] == ["paged_attention", "paged_attention_lse"]
    for entry in found.values():
        for op in entry["ops"]:
            assert op["cases"] == len(load_cases(op["name"])) and op["target"] == f"xla_gpu_{op['name']}".replace(
                ".", "_"
            )
    assert found["rms_norm"]["bad_inputs"] == found["rms_norm_triton"]["bad_inputs"] > 0
    assert found["rms_norm"]["benches"] > 0 and "rms_norm_host.cc" in found["rms_norm"]["files"]


def test_list_of_an_op_without_cases_and_of_none(tmp_path):
    tree = Tree(tmp_path)
    tree.tiny_op("tiny")
    tiny, none = tree.run("list", "tiny"), tree.run("list", "tony")
    assert tiny.returncode == 0 and "  state      not built\n" in tiny.stdout
    assert "  ops        none is declared" in tiny.stdout and "0 bad inputs, 0 benches" in tiny.stdout
    assert none.returncode == 2 and none.stderr.startswith("list: OP: expected a folder of kernels/ (")
