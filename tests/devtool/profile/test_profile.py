"""`devtool profile`: the machine code where there is no GPU, and saved profiles shown, compared and kept."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devtool.profile.advice import advice_of
from devtool.profile.counters import kernel_of, read_raw
from devtool.profile.profile_file import parse_profile
from devtool.profile.source import annotated, read_lines
from tests.devtool.profile.test_sass import assemble
from tests.devtool_tree import Tree, needs_nvcc

DATA = Path(__file__).parent / "data"
NO_GPU = "missing: counters, stalls, source lines and dynamic shared memory: there is no GPU here"


def real_profile() -> dict:
    """The file of a profile with a kernel that ran on an H100, as if it were simple_add's."""
    (row,) = read_raw((DATA / "raw.csv").read_text())
    kernel = kernel_of(row) | {"name": "DecodeKernel", "mix": {}}
    kernel |= {"lines": annotated(read_lines((DATA / "source_cuda_sass.csv").read_text())), "advice": advice_of(kernel)}
    rates = {"copy": {"per_second": 2.99e12, "what": "a copy"}, "matrix": {"per_second": 7.98e14, "what": "a product"}}
    document = {"schema": 1, "op": "simple_add", "case": "f32-1024x4096", "date": "2026-11-26T10:54:00+00:00"}
    document |= {"device": {"kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "driver": "CUDA 13.0"}, "sources": "0"}
    document |= {"architecture": "sm_90", "seconds": [4e-4, 3.6e-4, 3.7e-4], "rates": rates, "missing": []}
    return document | {"bytes": 1_074_000_000, "operations": 0, "kernels": [kernel]}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A checkout with an op whose library has two kernels for sm_80."""
    tree = Tree(tmp_path_factory.mktemp("profile"))
    tree.tiny_op("tiny")
    tree.library("tiny").parent.mkdir(parents=True)
    place = tree.root / "sass"
    place.mkdir()
    shutil.copy(assemble(place, "sm_80")[1], tree.library("tiny"))
    (tree.root / "profile.json").write_text(json.dumps(real_profile()))
    return tree


def test_machine_code(tree):
    result = tree.run("profile", "tiny", "--as-built", "--json", "code.json", PYXLA_CUDA="off")
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.stdout.startswith("tiny: machine code for sm_80\n") and NO_GPU in result.stdout
    (kernel,) = (line for line in lines if line[:1] == ["Kernel<float,"])
    assert kernel[3:9] == ["256", "B", "0", "B", "0", "?"]
    (spills,) = (line for line in lines if line[:1] == ["spills"])
    assert spills[4:6] == ["64", "B"] and int(spills[6]) >= 2 and spills[7:10] == ["128", "100.0", "%"]
    document = json.loads((tree.root / "code.json").read_text())
    assert (document["case"], document["device"], len(document["kernels"])) == (None, None, 2)
    code = next(k for k in document["kernels"] if k["name"] == "spills")
    assert code["figures"]["stack"] == 64 and sum(code["mix"].values()) == code["figures"]["instructions"]


def test_part_of_the_kernels(tree):
    result = tree.run("profile", "tiny", "--static", "--as-built", "--kernel", "spill")
    assert "Kernel<float" not in result.stdout and "spills" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("dynamic shared memory, as --static asks")


def test_saved_profile(tree):
    result = tree.run("profile", "--load", "profile.json")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "simple_add f32-1024x4096 on NVIDIA H100 80GB HBM3, CUDA 13.0"
    assert lines[1].startswith("a call takes 370 us") and lines[2].startswith(
        "2.90 TB/s, 97% of the copy rate, 2.99 TB/s"
    )
    assert "matrix rate" not in result.stdout  # the case has no operations
    found = {line.rpartition("  ")[0].strip(): line.rpartition("  ")[2].strip() for line in map(str.rstrip, lines)}
    assert (
        found["occupancy, achieved"] == "18.3 %" and found["occupancy is limited by"] == "registers and shared memory"
    )
    hottest = next(line for line in lines if "kernel.cuh:74" in line)
    assert (hottest.split()[:2], hottest.split()[-2:]) == (["51.8", "%"], ["long_sb", "LOP3"])
    assert lines[-1] == "DecodeKernel: The DRAM is at 88.9 % of its peak: only fewer bytes make the kernel faster."
    kept = json.loads((tree.root / "build/records/profile/simple_add-f32-1024x4096.json").read_text())
    assert kept == json.loads((tree.root / "profile.json").read_text())


def test_profile_against_an_earlier_one(tree):
    before = real_profile()
    kernel = before["kernels"][0]
    kernel["figures"] |= {"seconds": 2 * kernel["figures"]["seconds"], "achieved": 0.1, "spills": 0}
    before["seconds"] = [7.4e-4]
    (tree.root / "before.json").write_text(json.dumps(before))
    result = tree.run("profile", "--load", "profile.json", "--compare", "before.json")
    table = result.stdout.partition("against the profile of 2026-11-26T10:54:00+00:00")[2]
    rows = [[cell for cell in line.split("  ") if cell.strip()] for line in table.splitlines()]
    rows = [[cell.strip() for cell in row] for row in rows]
    assert ["the call", "duration", "740 us", "370 us", "-50.0 %"] in rows
    assert ["DecodeKernel", "duration", "723 us", "361 us", "-50.0 %"] in rows
    assert ["occupancy, achieved", "10.0 %", "18.3 %", "+8.3 points"] in rows
    assert ["registers of a thread", "146", "146"] in rows and ["stalls: long_sb", "83.9 %", "83.9 %"] in rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"case": "f32-1"}, "expected a profile of case f32-1024x4096, got case f32-1"),
        ({"op": "tiny"}, "expected a profile of op simple_add, got op tiny"),
        ({"device": None}, "expected a profile of device NVIDIA H100 80GB HBM3, CUDA 13.0, got device no GPU"),
        ({"kernels": []}, "expected the kernels DecodeKernel, got none"),
    ],
)
def test_profiles_that_cannot_be_compared(tree, changes, message):
    (tree.root / "other.json").write_text(json.dumps(real_profile() | changes))
    result = tree.run("profile", "--load", "profile.json", "--compare", "other.json")
    assert result.returncode == 1 and f"profile: --compare: {message}\n\nhint: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "devtool profile: arguments: expected those in its help, got: Missing argument 'OP'"),
        (
            ["tiny", "--load", "x"],
            2,
            "devtool profile: arguments: expected those in its help, got: --load shows a whole",
        ),
        (["tinny"], 2, "profile: OP: expected a folder of kernels/ (simple_add, tiny), got tinny"),
        (
            ["tiny", "--as-built", "--kernel", "spil1s"],
            2,
            "profile: --kernel: expected a part of the name of a kernel (",
        ),
        (["simple_add", "--as-built"], 1, "profile: simple_add: expected a built library, got none"),
        (["tiny", "--json", "none/x.json"], 2, "profile: --json: expected a file in a folder that exists, got none/x"),
        (["--load", "none.json"], 1, "profile: --load: expected a file of devtool profile --json, got No such file"),
        (["--load", "half.json"], 1, "profile: --load: expected a file of devtool profile --json, got invalid JSON"),
        (
            ["--load", "schema.json"],
            1,
            "profile: --load: expected a file of devtool profile --json (schema 1), got another",
        ),
    ],
)
def test_misuse(tree, arguments, status, message):
    (tree.root / "half.json").write_text(json.dumps(real_profile())[:500])
    (tree.root / "schema.json").write_text(json.dumps(real_profile() | {"schema": 2}))
    result = tree.run("profile", *arguments)
    assert (result.returncode, result.stdout) == (status, "") and result.stderr.startswith(message), result.stderr
    assert "\n\nhint: " in result.stderr


@pytest.mark.parametrize("missing", ["op", "kernels", "rates", "date"])
def test_document_without_a_field_is_no_profile(missing):
    document = real_profile()
    assert parse_profile(document).seconds == 3.7e-4
    del document[missing]
    with pytest.raises(KeyError):
        parse_profile(document)


def test_figure_that_is_no_number():
    document = real_profile()
    document["kernels"][0]["figures"]["seconds"] = float("nan")
    with pytest.raises(ValueError, match="a figure of DecodeKernel that is no number"):
        parse_profile(document)


def test_cases_are_those_of_benches_and_tests(tree):
    result = tree.run("profile", "simple_add", "--list")
    assert result.returncode == 0, result.stderr
    names = [line.partition("\t")[0] for line in result.stdout.splitlines()]
    assert names.index("bf16-1x4096") < names.index("f32-3x5") and "f32-1024x4096" not in names  # for the CPU


@needs_nvcc
@pytest.mark.slow
def test_lines_change_no_instruction(tree):
    """The library with lines is a fresh one of the same machine code; a change of the sources makes it stale."""
    code = """if True:
        import sys, threading
        from devtool import project
        from devtool.building.build import Options, build_ops
        from devtool.building.inventory import is_fresh
        from devtool.building.variant import with_lines
        from devtool.profile.sass import find_cuobjdump, read_kernels
        lined = Options("on", variant=with_lines())
        libraries = [*build_ops(["simple_add"], Options("on")), *build_ops(["simple_add"], lined)]
        codes = [read_kernels("test", path, find_cuobjdump(), threading.Event()) for path in libraries]
        source = project.kernels() / "simple_add/simple_add.cu"
        print(len(codes[0]), codes[0] == codes[1], is_fresh("simple_add", libraries[1]), end=" ")
        print([str(source).encode() in path.read_bytes() for path in libraries], end=" ")
        source.write_text(source.read_text() + "// changed\\n")
        print(is_fresh("simple_add", libraries[1]))
    """
    environment = tree.environment(CUDAARCHS="80-real", PYXLA_CUDA="on")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tree.root, env=environment, capture_output=True, text=True
    )
    assert done.stdout == "3 True True [False, True] False\n", done.stderr
