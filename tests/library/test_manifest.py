"""How pyxla reads a library's manifest and compares it with the library."""

import json
import shutil
from dataclasses import asdict

import pytest

from pyxla.errors import LibraryError
from pyxla.library import find
from pyxla.library.find import find_library
from pyxla.library.manifest import Manifest, file_digest, read_manifest
from pyxla.library.op_table import read_op_table
from tests.conftest import ROOT, compile_library
from tests.library.test_find import BUILT, run_script, use_package


def change_manifest(library, **changes):
    manifest = library.with_suffix(".json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))


def test_manifest_says_what_the_library_says():
    manifest, table = read_manifest(BUILT / "libsimple_add.so"), read_op_table(BUILT / "libsimple_add.so")
    for name in ("op", "source_digest", "compiler", "flags_digest", "cuda_architectures", "ffi_api_version"):
        assert getattr(manifest, name) == getattr(table, name)
    assert manifest.sha256 == file_digest(BUILT / "libsimple_add.so")
    assert list(asdict(manifest)) == [*Manifest.__dataclass_fields__]


def test_changed_library(installed):
    content = bytearray(installed.read_bytes())
    before = file_digest(installed)
    content[len(content) // 2] ^= 1
    installed.write_bytes(content)
    with pytest.raises(LibraryError) as error:
        find_library("simple_add")
    after = file_digest(installed)
    assert error.value.message == (
        f"simple_add: library: expected SHA-256 {before[:12]} (libsimple_add.json), got {after[:12]} in {installed}"
    )
    assert error.value.hint == "devtool build simple_add --clean, or install library and manifest anew"


def test_no_code_of_a_changed_library_runs(installed, tmp_path):
    """Loading a library runs its constructors, so the digest is compared before."""
    trace, source = tmp_path / "trace", tmp_path / "trace.cc"
    constructor = f'__attribute__((constructor)) static void Run() {{ std::fclose(std::fopen("{trace}", "w")); }}'
    source.write_text(f"#include <cstdio>\n{constructor}\n")
    compile_library(source, installed)
    with pytest.raises(LibraryError, match="expected SHA-256"):
        find_library("simple_add")
    assert not trace.exists()
    read_op_table(installed)
    assert trace.exists()


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("op", "rms_norm", "'rms_norm'"),
        ("source_digest", "0" * 64, f"'{'0' * 64}'"),
        ("compiler", "GNU 1.2.3", "'GNU 1.2.3'"),
        ("flags_digest", "0" * 64, f"'{'0' * 64}'"),
        ("cuda_architectures", ["70-real"], "('70-real',)"),
        ("ffi_api_version", [9, 9], "(9, 9)"),
        ("op_table", 3, "3"),
    ],
)
def test_manifest_that_contradicts_the_table(installed, field, value, shown):
    in_table = getattr(read_op_table(installed), "version" if field == "op_table" else field)
    change_manifest(installed, **{field: value})
    with pytest.raises(LibraryError) as error:
        find_library("simple_add")
    manifest = installed.with_suffix(".json")
    assert error.value.message == (
        f"simple_add: manifest: expected {field} {in_table!r} (the op table), got {shown} in {manifest}"
    )
    assert error.value.hint == "devtool build simple_add --clean"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "expected whole JSON, got Expecting value"),
        (0.5, "expected whole JSON, got "),
        (b"\xff\xfe\x00", "expected whole JSON, got 'utf-8' codec can't decode"),
        (b"[" * 100000, "expected whole JSON, got "),
        (b"[]", "expected op as the build writes it, got None in "),
        ({"format": "2"}, "expected format as the build writes it, got '2' in "),
        ({"op_table": None}, "expected op_table as the build writes it, got None in "),
        ({"headers": True}, "expected headers as the build writes it, got True in "),
        ({"sha256": None}, "expected sha256 as the build writes it, got None in "),
        ({"nixpkgs": 25.05}, "expected nixpkgs as the build writes it, got 25.05 in "),
        ({"cuda_architectures": "80-real"}, "expected cuda_architectures as the build writes it, got '80-real' in "),
        ({"ffi_api_version": ["0", "1"]}, "expected ffi_api_version as the build writes it, got ['0', '1'] in "),
    ],
    ids=[
        "empty",
        "cut short",
        "binary",
        "deep",
        "list",
        "format",
        "no table",
        "no headers",
        "no digest",
        "number",
        "text for a list",
        "list of texts",
    ],
)
def test_damaged_manifest(installed, content, expected):
    manifest = installed.with_suffix(".json")
    if isinstance(content, dict):
        change_manifest(installed, **content)
    else:
        whole = manifest.read_bytes()
        manifest.write_bytes(whole[: int(len(whole) * content)] if isinstance(content, float) else content)
    with pytest.raises(LibraryError) as error:
        find_library("simple_add")
    assert error.value.message.startswith(f"simple_add: manifest: {expected}")
    assert str(manifest) in error.value.message
    assert error.value.hint == "devtool build simple_add --clean"


def test_manifest_says_which_nixpkgs(installed):
    """A manifest of an older build has no such field."""
    values = json.loads(installed.with_suffix(".json").read_text())
    found = []
    for nixpkgs in ({"nixpkgs": "25.05 ca534a7"}, {"nixpkgs": None}, {}):
        rest = {name: value for name, value in values.items() if name != "nixpkgs"}
        installed.with_suffix(".json").write_text(json.dumps(rest | nixpkgs))
        assert find_library("simple_add").path == installed
        found.append(read_manifest(installed).nixpkgs)
    assert found == ["25.05 ca534a7", None, None]


def test_manifest_that_cannot_be_read(installed):
    installed.with_suffix(".json").unlink()
    installed.with_suffix(".json").mkdir()
    with pytest.raises(LibraryError, match=r"simple_add: manifest: expected a readable file, got .*libsimple_add.json"):
        find_library("simple_add")


def test_installed_library_without_a_manifest(installed):
    installed.with_suffix(".json").unlink()
    with pytest.raises(LibraryError) as error:
        find_library("simple_add")
    assert error.value.message == (
        f"simple_add: manifest: expected libsimple_add.json beside the library, got none beside {installed}"
    )
    assert error.value.hint.startswith("install library and manifest together")


def test_library_compiled_by_hand_is_known_by_its_sources(tmp_path, monkeypatch):
    kernels = tmp_path / "kernels"
    shutil.copytree(ROOT / "kernels", kernels)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "build/lib").mkdir(parents=True)
    shutil.copy(BUILT / "libsimple_add.so", tmp_path / "build/lib")
    use_package(monkeypatch, kernels)
    monkeypatch.setattr(find, "preloaded_libraries", lambda: ())
    assert find_library("simple_add").origin == "checkout"
    with (kernels / "simple_add/simple_add.h").open("a") as header:
        header.write("// changed\n")
    with pytest.raises(LibraryError, match="simple_add: library: expected source digest"):
        find_library("simple_add")


def test_preloaded_library_without_a_manifest(tmp_path):
    copy = shutil.copy(BUILT / "libsimple_add.so", tmp_path)
    script = "import pyxla.library.find as l; print(l.find_library('simple_add').origin)"
    assert run_script(script, preload=str(copy)).stdout.split() == ["preloaded"]


def test_preloaded_library_with_the_manifest_of_another(tmp_path):
    copy = shutil.copy(BUILT / "libsimple_add.so", tmp_path)
    shutil.copy(BUILT / "librms_norm.json", tmp_path / "libsimple_add.json")
    result = run_script("import torch_xla", preload=str(copy), check=False)
    assert "simple_add: library: expected SHA-256 " in result.stderr and str(copy) in result.stderr


def test_preloaded_library_of_another_kind_may_have_any_json(tmp_path):
    source = tmp_path / "other.cc"
    source.touch()
    other = compile_library(source, tmp_path / "libother.so")
    other.with_suffix(".json").write_text("not ours")
    script = "import pyxla.library.find as l; print(l.preloaded_libraries())"
    assert run_script(script, preload=str(other)).stdout.split() == ["()"]
