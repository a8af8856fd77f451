"""The manifest of a library, and the libraries and folders that the build rejects."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from devtool.scaffold.names import op_problem
from pyxla.library.op_table import read_op_table
from pyxla.library.source_digest import source_digest
from tests.conftest import ROOT
from tests.devtool_tree import TINY, Tree, needs_nvcc

# What a path could enter: the file's name, and nvcc's names for file-local symbols.
PLACED = f"{TINY}const char* place();\nconst char* place() {{ return __FILE__; }}\n"
KERNEL = "%s __global__ void Fill(float* out) { out[0] = 1; } %s void Launch(float* out) { Fill<<<1, 1>>>(out); }\n"
STATIC, ANONYMOUS = KERNEL % ("static", ""), KERNEL % ("namespace {", "}")


# Part of every op's digest.
FAMILIES = {path.name for path in (ROOT / "kernels").glob("_[a-z]*")}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("here"))
    shutil.rmtree(tree.kernels / "simple_add")
    tree.tiny_op("one", PLACED)
    assert tree.run("build").returncode == 0
    return tree


@pytest.fixture
def tree(shared):
    """A tree with only the op `one`, built."""
    yield shared
    for folder in shared.kernels.iterdir():
        if folder.is_dir() and folder.name not in FAMILIES:
            shutil.rmtree(folder)
    shared.tiny_op("one", PLACED)
    assert shared.run("build").returncode == 0


def built(tree: Tree, op: str = "one") -> tuple[bytes, dict]:
    """The library's bytes, and its manifest."""
    return tree.library(op).read_bytes(), json.loads(tree.library(op).with_suffix(".json").read_text())


def test_manifest_says_what_was_built(shared):
    library, manifest = built(shared)
    table = read_op_table(shared.library("one"))
    assert manifest["op"] == "one" and manifest["library"] == "libone.so"
    assert manifest["sha256"] == hashlib.sha256(library).hexdigest()
    assert manifest["source_digest"] == table.source_digest == source_digest(shared.kernels, "one")
    assert manifest["flags_digest"] == table.flags_digest == hashlib.sha256(manifest["flags"].encode()).hexdigest()
    assert manifest["compiler"] == table.compiler and re.match(r"\w+ \d+\.", manifest["compiler"])
    assert manifest["cuda_architectures"] == list(table.cuda_architectures) == []
    assert manifest["ffi_api_version"] == list(table.ffi_api_version)
    for flag in ("-O3", "-std=c++20", "-fPIC", "-Werror", "-fno-math-errno", "-Wl,--no-undefined"):
        assert flag in manifest["flags"].split()


def test_sources_in_folders_of_the_op_and_of_its_family_are_digested(tree):
    """The digest covers the headers of every subfolder; sources in subfolders are compiled, except those in vendor/."""
    folder = tree.tiny_op(
        "one", f'#include "_family/value.h"\n{TINY}int part();\nint use() {{ return part(); }}\n'
    ).parent
    texts = {
        "part/deeper/part.h": "int part();\n",
        "part/part.cc": '#include "one/part/deeper/part.h"\nint part() { return kValue; }\n',
        "../_family/value.h": "constexpr int kValue = 1;\n",
        "vendor/theirs.cc": "not C++\n",
    }
    texts["part/part.cc"] = '#include "_family/value.h"\n' + texts["part/part.cc"]
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    digests = set()
    for name in (None, *texts):
        if name:
            (folder / name).write_text(f"{texts[name]}\n")
        assert tree.run("build").returncode == 0
        digests.add(built(tree)[1]["source_digest"])
        assert built(tree)[1]["source_digest"] == source_digest(tree.kernels, "one")
    assert len(digests) == 1 + len(texts)


def implement(tree: Tree, folder: str, op: str, **files: str) -> Path:
    path = tree.kernels / folder
    path.mkdir()
    for name, text in ({"implements": f"{op}\n"} | files).items():
        (path / name).write_text(text)
    return path


def test_library_of_an_implementation_is_made_of_the_ops_sources_and_its_own(tree):
    """The op's handler under the implementation's target, and the function that each of the two defines itself."""
    source = TINY.replace("int answer();\nint answer() { return 42; }", "const char* said();").replace(
        "{ return nullptr; }", "{ return said() ? nullptr : nullptr; }"
    )
    said = 'const char* said();\nconst char* said() { return "said by NAME"; }\n'
    op = tree.tiny_op("one", source).parent
    (op / "one_launch.cc").write_text(said.replace("NAME", "one"))
    own = implement(tree, "one_fast", "one", **{"one_fast_launch.cc": said.replace("NAME", "fast")})
    for changed in (None, op / "one_ffi.cc", own / "one_fast_launch.cc"):
        if changed:
            changed.write_text(f"{changed.read_text()}// more\n")
        assert tree.run("build").returncode == 0
        library, manifest = built(tree, "one_fast")
        assert manifest["source_digest"] == source_digest(tree.kernels, "one_fast")
        assert manifest["op"] == "one_fast" and b"said by fast" in library and b"said by one" not in library
    assert b"said by one" in built(tree)[0]
    targets = {name: read_op_table(tree.library(name)).handlers[0].target for name in ("one", "one_fast")}
    assert targets == {"one": "xla_gpu_one", "one_fast": "xla_gpu_one_fast"}


def test_file_of_the_implementation_takes_the_place_of_the_ops(tree):
    implement(tree, "one_fast", "one", **{"one_fast_ffi.cc": TINY.replace("NAME", "one").replace("42", "43")})
    assert tree.run("build").returncode == 0
    assert read_op_table(tree.library("one_fast")).handlers[0].target == "xla_gpu_one_fast"


@pytest.mark.parametrize(
    ("folder", "op", "message"),
    [
        ("one_fast", "nobody", "one_fast: implements: expected an op with nobody/nobody_ffi.cc, got nobody"),
        ("fast", "one", "fast: folder: expected one_ and the implementation's name, as it implements one, got fast"),
        ("one_", "one", "one_: folder: expected one_ and the implementation's name, as it implements one, got one_"),
    ],
)
def test_folder_that_implements_nothing(tree, folder, op, message):
    implement(tree, folder, op)
    result = tree.run("build")
    assert result.returncode and message in result.stderr


def test_manifest_has_one_form_and_no_path(shared):
    text = shared.library("one").with_suffix(".json").read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert "/" not in text


def test_flags_of_the_user_are_in_the_manifest(tree):
    """With characters that have a meaning in shells, ninja, CMake or JSON."""
    before = built(tree)[1]
    flags = r'-DSAID="a \"b\";\\c" -DCOST=$5 -pipe'
    result = tree.run("build", CXXFLAGS=flags, LDFLAGS="-Wl,-z,now")
    assert result.returncode == 0, result.stderr
    library, manifest = built(tree)
    assert f"c++: {flags} -O3 " in manifest["flags"] and "| link: -Wl,-z,now -Wl,--build-id=none" in manifest["flags"]
    assert manifest["flags_digest"] != before["flags_digest"] and manifest["flags_digest"].encode() in library
    assert tree.run("build").returncode == 0 and built(tree)[1] == before


def test_sanitizer_is_among_the_flags(tree):
    assert tree.run("build", "--sanitize", "undefined").returncode == 0
    manifest = json.loads(tree.library("one", "lib-undefined").with_suffix(".json").read_text())
    assert manifest["flags"].count("-fsanitize=undefined") == 2  # compiling and linking
    assert "-fsanitize" not in built(tree)[1]["flags"]


def test_same_bytes_wherever_the_checkout_lies(shared, tmp_path):
    other = Tree(tmp_path / "a longer path/with a space")
    shutil.rmtree(other.kernels / "simple_add")
    other.tiny_op("one", PLACED)
    assert other.run("build").returncode == 0
    assert built(other) == built(shared)


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_manifest_is_written_again(tree, damage):
    library, manifest = built(tree)
    path = tree.library("one").with_suffix(".json")
    path.unlink() if damage == "gone" else path.write_text("{}")
    arguments = [] if damage == "gone" else ["one", "--clean"]
    assert tree.run("build", *arguments).stderr.startswith("build: built one in ")
    assert built(tree) == (library, manifest)


def test_clean_removes_the_manifest_too(tree):
    """If one of several ops fails, ninja removes only its library."""
    tree.tiny_op("two")
    tree.tiny_op("one", "nonsense\n")
    assert tree.run("build", "one", "--clean").returncode == 1
    assert list(tree.library("one").parent.glob("libone.*")) == []


def test_library_without_an_op_table(tree):
    tree.tiny_op("bare", "int answer();\nint answer() { return 42; }\n")
    for _ in range(2):
        result = tree.run("build", "bare")
        assert result.returncode == 1
        assert (
            "   bare: library: expected an op table, got no symbol pyxla_op_table\n   \n"
            "   hint: end bare_ffi.cc with PYXLA_OP_TABLE(bare, ...) and a line for each handler\n"
        ) in result.stderr
        assert "\nbuild: bare: expected it to build, got a library that fails a check\n\nhint: " in result.stderr
        assert not tree.library("bare").exists() and not tree.library("bare").with_suffix(".json").exists()
    tree.tiny_op("bare")
    assert tree.run("build", "bare").stderr.startswith("build: built bare in ")


def test_op_table_without_a_handler(tree):
    tree.tiny_op("idle", '#include "pyxla/ffi/op_table.h"\nPYXLA_OP_TABLE(idle, )\n')
    result = tree.run("build", "idle")
    assert result.returncode == 1
    assert "op table: expected a line for each handler, got none" in result.stderr
    shutil.rmtree(tree.kernels / "idle")


@pytest.mark.parametrize("source", ["lonely.cc", "lonely.cu", "ffi.cc", "lonely.cpp"])
def test_folder_with_sources_and_no_ffi_file(tree, source):
    (tree.kernels / "lonely").mkdir()
    (tree.kernels / "lonely" / source).touch()
    result = tree.run("build", "one")
    assert result.returncode == 1
    assert f"   lonely: sources: expected lonely/lonely_ffi.cc, got lonely/{source}\n   \n   hint: " in result.stderr
    assert "\nbuild: configure: expected CMake to succeed, got the error above\n\nhint: " in result.stderr
    named = tree.run("build", "lonely")
    assert named.returncode == 1
    assert named.stderr.startswith(
        "build: OP: expected kernels/lonely/lonely_ffi.cc, got a folder without it\n\nhint: "
    )


@pytest.mark.parametrize("name", ["My-Op", "2fast", "_hidden", "Upper", "a" * 65])
def test_folder_with_a_name_that_no_op_can_have(tree, name):
    """CMake and `devtool new-op` have the same rule and message."""
    tree.tiny_op(name)
    result = tree.run("build", "one")
    assert result.returncode == 1
    assert f"   {name}: folder: expected {op_problem(name)}, got {name}\n   \n   hint: rename " in result.stderr


def test_folders_that_are_no_ops(tree):
    """Notes, Python's caches, and the folder that `devtool new-op` is writing."""
    for name in ("notes/README.md", "notes/shared.h", "__pycache__/x.cc", ".new-two-abc/two_ffi.cc"):
        path = tree.kernels / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    result = tree.run("build")
    assert (result.returncode, result.stdout) == (0, f"{tree.library('one')}\n")


@pytest.mark.slow
@needs_nvcc
def test_cuda_code(shared, tmp_path):
    """nvcc names its intermediate files by its process id, and hashes the path into names of an anonymous namespace."""
    trees = [Tree(tmp_path / name) for name in ("here", "elsewhere/further-down")]
    for tree in trees:
        shutil.rmtree(tree.kernels / "simple_add")
        source = tree.tiny_op("one", PLACED).with_name("one.cu")
        source.write_text(STATIC)
        result = tree.run("build", PYXLA_CUDA="on")
        assert result.returncode == 0, result.stderr
    library, manifest = built(trees[0])
    assert built(trees[1]) == (library, manifest) != built(shared)
    assert manifest["cuda_architectures"] == ["80-real", "90a-real", "100-real", "100-virtual"]
    assert re.search(r"\| cuda: .*-std=c\+\+17 .*--generate-code=80-real,90a-real,", manifest["flags"])
    assert ", NVIDIA " in manifest["compiler"] and str(tmp_path).encode() not in library

    source.write_text(ANONYMOUS)
    result = tree.run("build", PYXLA_CUDA="on")
    assert result.returncode == 1
    assert "one: library: expected bytes that do not depend on the path, got _ZN" in result.stderr
    assert "   hint: put the kernels of the .cu into a named namespace or make them static: nvcc " in result.stderr
    assert not tree.library("one").exists() and not tree.library("one").with_suffix(".json").exists()
