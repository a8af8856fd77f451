"""`devtool new-op --route wrap` makes ops of an existing library and of a header, and rejects what it cannot wrap."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devtool_tree import Tree

# A foreign library: a C ABI, and a SONAME that differs from the file's name.
SOURCE = (
    "void scale_f32(const float* x, float* out, long n, float s) { for (long i = 0; i < n; i++) out[i] = s * x[i]; }\n"
)
HEADER = "#pragma once\ninline float Scaled(float x, float s) { return s * x; }\n"
SCHEMA = "(Tensor x, float scale=1.5) -> Tensor"
OPTIONS = ["--version", "1.2", "--licence", "MIT"]
SONAME = "libscale.so.1"
SELECT = ["--", "-k", "f32-3x5 or bf16-3x5 or other or bad_input"]


def compile_library(folder: Path, source: str = SOURCE, name: str = "libscale.so.1.2") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "scale.c").write_text(source)
    library = folder / name
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}", "-o", library, folder / "scale.c"]
    subprocess.run(command, check=True)
    return library


def wrap(tree: Tree, name: str, library: Path, *options: str):
    return tree.run("new-op", name, SCHEMA, "--route", "wrap", "--library", str(library), *options)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A tree with an op that calls the library, and one that calls the header."""
    tree = Tree(tmp_path_factory.mktemp("wrap"))
    library = compile_library(tree.root / "theirs")
    result = wrap(tree, "scaled", library, "--symbol", "scale_f32", *OPTIONS)
    assert result.returncode == 0, result.stderr
    assert f"kernels/scaled/vendor/{SONAME}" in result.stdout.splitlines()
    header = tree.root / "theirs/scaled.h"
    header.write_text(HEADER)
    result = wrap(tree, "by_header", header, *OPTIONS)
    assert result.returncode == 0, result.stderr
    result = tree.run("test", "scaled", "by_header", *SELECT)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    return tree


@pytest.mark.slow
def test_install_takes_the_library_along(tree):
    """As in the wheel, each op's library is in its package, with its wrapped library."""
    assert tree.run("build").returncode == 0
    place = tree.root / "installed"
    command = [Path(sys.executable).parent / "cmake", "--install", tree.root / "build/cmake", "--prefix", place]
    subprocess.run(command, check=True, capture_output=True)
    assert (place / f"pyxla_kernels/scaled/scaled.wrapped/{SONAME}").is_file()
    result = tree.run("verify", str(place))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("scale 1.2, MIT") == 1


def edit(path: Path, *changes: tuple[str, str]) -> None:
    for old, new in changes:
        assert path.read_text().count(old) == 1, old
        path.write_text(path.read_text().replace(old, new))


def manifest(tree: Tree, op: str) -> dict:
    return json.loads(tree.library(op).with_suffix(".json").read_text())


def test_folder_and_manifest_record_version_and_licence(tree):
    recorded = {"name": "scale", "version": "1.2", "licence": "MIT"}
    stated = json.loads((tree.kernels / "scaled/wrapped.json").read_text())
    assert stated == recorded | {"library": SONAME, "symbols": ["scale_f32"]}
    found = manifest(tree, "scaled")["wrapped"]
    assert found.pop("sha256") and found == recorded | {"library": SONAME}
    recorded["name"] = "scaled"
    assert json.loads((tree.kernels / "by_header/wrapped.json").read_text()) == recorded
    assert manifest(tree, "by_header")["wrapped"] == recorded | {"library": None, "sha256": None}


def test_library_is_found_beside_the_ops_own(tree):
    result = tree.run("verify", str(tree.library("scaled")), str(tree.library("by_header")))
    assert result.returncode == 0, result.stderr
    assert "scale 1.2, MIT" in result.stdout and "scaled 1.2, MIT" in result.stdout
    # Both files, moved elsewhere.
    folder = tree.root / "elsewhere"
    folder.mkdir()
    for path in (tree.library("scaled"), tree.library("scaled").with_suffix(".json")):
        shutil.copy(path, folder)
    result = tree.run("verify", str(folder))
    expected = f"scaled: wrapped library: expected {SONAME} of scale 1.2, got none at {folder}/scaled.wrapped/{SONAME}"
    assert result.returncode == 1 and expected in result.stderr
    shutil.copytree(tree.library("scaled").parent / "scaled.wrapped", folder / "scaled.wrapped")
    assert tree.run("verify", str(folder)).returncode == 0


def test_ops_compute_with_what_they_wrap_once_it_is_called(tree):
    """After the edits that the stubs require: the library's declaration, and calls instead of the stub's arithmetic."""
    library_host = tree.kernels / "scaled/scaled_host.cc"
    header_host = tree.kernels / "by_header/by_header_host.cc"
    before = {path: path.read_text() for path in (library_host, header_host)}
    edit(
        library_host,
        ("void scale_f32();", "void scale_f32(const float* x, float* out, long n, float s);"),
        ("[[gnu::used]] static void (*const kWrapped[])() = {scale_f32};\n", ""),
        ("out[i] = pyxla::FromFloat<T>(factor * blend);", "scale_f32(&blend, &blend, 1, factor);\n"
         "    out[i] = pyxla::FromFloat<T>(blend);"),
    )  # fmt: skip
    assert '#include "scaled.h"\n' in before[header_host]
    edit(header_host, ("FromFloat<T>(factor * blend)", "FromFloat<T>(Scaled(blend, factor))"))
    result = tree.run("test", "scaled", "by_header", *SELECT)
    for path, text in before.items():
        path.write_text(text)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr


@pytest.fixture
def broken(tree):
    """The tree; afterwards the op's vendor folder, wrapped.json and built files are restored."""
    folder, kept, lib, kept_lib = (
        tree.kernels / "scaled",
        tree.root / "kept",
        tree.root / "build/lib",
        tree.root / "lib",
    )
    shutil.copytree(folder, kept)
    shutil.copytree(lib, kept_lib)
    yield tree
    for there, copy in ((folder, kept), (lib, kept_lib)):
        shutil.rmtree(there)
        copy.rename(there)


def test_build_with_a_library_that_is_missing(broken):
    (broken.kernels / f"scaled/vendor/{SONAME}").unlink()
    assert f"scaled: wrapped library: expected scaled/vendor/{SONAME}, got none" in refused_build(broken)


def test_build_with_a_library_that_lacks_a_symbol(broken):
    library = compile_library(broken.root / "newer", SOURCE.replace("scale_f32", "scale_v2_f32"))
    shutil.copy(library, broken.kernels / f"scaled/vendor/{SONAME}")
    expected = f"scaled: wrapped library: expected the symbol scale_f32, got none in {SONAME} 1.2"
    assert expected in refused_build(broken)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: b"!<arch>\n" + data, "expected a 64-bit ELF library, got another file at "),
        (lambda data: data[:18] + b"\xf3\x00" + data[20:], "expected code for x86_64, got ELF machine 243 in "),
    ],
    ids=["archive", "riscv"],
)
def test_build_with_another_file(broken, change, expected):
    library = broken.kernels / f"scaled/vendor/{SONAME}"
    library.write_bytes(change(library.read_bytes()))
    assert f"scaled: wrapped library: {expected}" in refused_build(broken)


@pytest.mark.parametrize("field", ["name", "version", "licence"])
def test_build_without_version_or_licence(broken, field):
    path = broken.kernels / "scaled/wrapped.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != field}))
    assert f"scaled: wrapped.json: expected {field} as a text, got " in refused_build(broken)


def refused_build(tree: Tree) -> str:
    result = tree.run("build", "scaled")
    assert result.returncode == 1 and "\nhint: " in result.stderr
    return result.stderr


def run(tree: Tree) -> str:
    """Calls the op and returns the error."""
    script = "import torch, pyxla; from pyxla.library.find import find_library\ntry: find_library('scaled')\n"
    script += "except pyxla.errors.LibraryError as error: print(error)"
    command = [*tree.command()[:2], "-c", script]
    return subprocess.run(command, env=tree.environment(), check=True, capture_output=True, text=True).stdout


def test_library_that_was_changed_after_the_build(broken):
    path = broken.root / f"build/lib/scaled.wrapped/{SONAME}"
    path.write_bytes(path.read_bytes() + b"\0")
    assert re.search(
        rf"scaled: wrapped library: expected {SONAME} of scale 1.2, SHA-256 \w{{12}}, got \w{{12}} in ", run(broken)
    )


def test_library_that_lacks_a_symbol_when_it_is_loaded(broken):
    """Without a manifest, as for a library compiled by hand: the loader's own error, which names the symbol."""
    library = compile_library(broken.root / "newer", SOURCE.replace("scale_f32", "scale_v2_f32"))
    shutil.copy(library, broken.root / f"build/lib/scaled.wrapped/{SONAME}")
    broken.library("scaled").with_suffix(".json").unlink()
    said = run(broken)
    assert said.startswith("scaled: library: expected a loadable library, got ")
    assert "undefined symbol: scale_f32" in said and "hint: devtool build scaled" in said


LIBRARY = ["--library", "LIB/libscale.so.1.2"]
SYMBOL = ["--symbol", "x", *OPTIONS]
# The options, and new-op's message.
REFUSED = {
    "no-library": ([], "--library: expected a library (.so) or header to wrap, got none"),
    "no-file": (["--library", "LIB/none.so"], "--library: expected a file, got none at LIB/none.so"),
    "no-version": ([*LIBRARY, "--licence", "MIT"], "--version: expected the version of libscale.so.1.2, got none"),
    "no-licence": ([*LIBRARY, "--version", "1"], "--licence: expected the licence of libscale.so.1.2, got none"),
    "no-symbol": ([*LIBRARY, *OPTIONS], "--symbol: expected each function of the library that the op calls, got none"),
    "symbol": (
        [*LIBRARY, "--symbol", "scale_f16", *OPTIONS],
        "--symbol: expected a symbol that libscale.so.1.2 exports, got scale_f16\n\nhint: did you mean 'scale_f32'?",
    ),
    "not-elf": (["--library", "LIB/scale.c", *SYMBOL], "--library: expected an ELF library or a header, got "),
    "object": (["--library", "LIB/scale.o", *SYMBOL], "--library: expected a shared library, got ET_REL in "),
    "machine": (
        ["--library", "LIB/riscv.so", *SYMBOL],
        "--library: expected code for x86_64 (EM_X86_64), got EM_RISCV",
    ),
    "file-name": (
        ["--library", "LIB/scale 2.h", *OPTIONS],
        "--library: expected a name of letters, digits and _ . + -, no path, got 'scale 2.h'",
    ),
    "header": (["--library", "LIB/scaled.h", *SYMBOL], "--symbol: expected none for a header, got x"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_new_op_refuses(tree, case):
    options, message = REFUSED[case]
    theirs = tree.root / "theirs"
    subprocess.run(["gcc", "-c", theirs / "scale.c", "-o", theirs / "scale.o"], check=True)
    data = (theirs / "libscale.so.1.2").read_bytes()
    (theirs / "riscv.so").write_bytes(data[:18] + b"\xf3\x00" + data[20:])
    (theirs / "scale 2.h").write_text(HEADER)
    result = tree.run(
        "new-op", "unwritten", SCHEMA, "--route", "wrap", *(o.replace("LIB", str(theirs)) for o in options)
    )
    assert result.returncode == 2 and not (tree.kernels / "unwritten").exists()
    assert result.stderr.startswith("new-op: " + message.replace("LIB", str(theirs))) and "\nhint: " in result.stderr


def test_library_whose_soname_is_a_path(tree):
    """vendor/ joined with an absolute path is that path, so new-op would overwrite the file that the SONAME names."""
    theirs = tree.root / "theirs"
    other = theirs / "other.so"
    other.write_text("theirs")
    command = ["gcc", "-shared", f"-Wl,-soname,{other}", "-fPIC", "-o", theirs / "path.so", theirs / "scale.c"]
    subprocess.run(command, check=True)
    result = wrap(tree, "unwritten", theirs / "path.so", "--symbol", "scale_f32", *OPTIONS)
    assert result.returncode == 2 and not (tree.kernels / "unwritten").exists()
    assert f"digits and _ . + -, no path, got the SONAME '{other}' in {theirs}/path.so\n\nhint: " in result.stderr
    assert other.read_text() == "theirs"


def test_options_of_wrap_with_another_route(tree):
    result = tree.run("new-op", "unwritten", "--licence", "MIT")
    assert result.returncode == 2
    assert result.stderr.startswith("new-op: --licence: expected --route wrap with it, got --route cuda\n\nhint: ")


@pytest.mark.parametrize("value", ["MIT", {"name": "scale"}, {"name": None, "version": "1"}])
def test_manifest_with_another_form_of_wrapped(tree, tmp_path, value):
    from pyxla.errors import LibraryError
    from pyxla.library.manifest import read_manifest

    text = json.dumps(manifest(tree, "scaled") | {"wrapped": value})
    (tmp_path / "libscaled.json").write_text(text)
    with pytest.raises(LibraryError, match="scaled: manifest: expected wrapped as the build writes it, got "):
        read_manifest(tmp_path / "libscaled.so")
