"""Which libraries this pyxla loads: those of earlier releases, and none that is too old or too new."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import pyxla
from devtool.building.inventory import library_state
from devtool.doctor import checks
from devtool.processes import locate
from devtool.repository import write_site
from pyxla import packages
from pyxla.errors import VersionError
from pyxla.library import find
from pyxla.library.contract import MANIFESTS, OP_TABLES
from pyxla.library.find import load_library
from pyxla.library.manifest import read_manifest
from pyxla.library.op_table import read_op_table
from tests.conftest import ROOT, compile_library
from tests.devtool.scaffold.test_init import environment, run
from tests.devtool_tree import TINY
from tests.kernels.test_recipe import configure
from tests.library.test_find import BUILT
from tests.markdown import page

RELEASED = {
    int(path.name.removeprefix("op_table_").removesuffix(".tar.xz")): path
    for path in sorted((ROOT / "tests/library/released").glob("op_table_*.tar.xz"))
}
# An op as a repository of that release has it: its headers' folder, and a target in its namespace.
HANDLER = """#include "HEADERS/ffi/checks.h"
#include "HEADERS/ffi/ffi.h"
#include "HEADERS/ffi/op_table.h"
namespace ffi = xla::ffi;
static ffi::Error Run(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out, double factor) {
  PYXLA_RETURN_IF_ERROR(pyxla::CheckDtype("aged", "x", x, {ffi::F32}));
  const float* from = x.typed_data<float>();
  float* to = out->typed_data<float>();
  for (size_t i = 0; i < x.element_count(); ++i) to[i] = static_cast<float>(factor * from[i]);
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kRun, Run,
                       ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<double>("factor"));
PYXLA_OP_TABLE(aged, PYXLA_HOST_HANDLER("NAMESPACE_aged", kRun))
"""
FUNCTION = '''import torch

from pyxla import custom_op


@custom_op
def aged(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """factor * x"""
    return factor * x


@aged.register_fake
def _(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    return torch.empty_like(x)
'''
CALL = """
import torch, torch_xla
from pyxla.library.find import find_library
x = torch.arange(5.0)
result = torch.ops.{namespace}.aged(x.to(torch_xla.device()), 2.5)
assert 'custom_call_target="{namespace}_aged"' in torch_xla._XLAC._get_xla_tensors_hlo([result])
library = find_library("aged", "{namespace}")
print(result.cpu().tolist(), library.origin, library.table.version)
print(torch.ops.xla_gpu.simple_add(x, x).tolist())
"""


def build(release: int, place: Path, namespace: str) -> Path:
    """Builds the op with the headers and the recipe of a release; returns the folder of library and manifest."""
    with tarfile.open(RELEASED[release]) as archive:
        archive.extractall(place, filter="data")
    recipe, headers = ("kernels", "common") if release == 3 else ("pyxla/cmake", "pyxla")
    source = place / "kernels/aged/aged_ffi.cc"
    source.parent.mkdir(parents=True)
    source.write_text(HANDLER.replace("HEADERS", headers).replace("NAMESPACE", namespace))
    options = (f"-DPYXLA_KERNELS={place / 'kernels'}", f"-DPYXLA_NAMESPACE={namespace}")
    done = configure(str(place / recipe), place / "build", *options, "-Wno-dev")
    assert done.returncode == 0, done.stderr
    subprocess.run([locate("cmake"), "--build", place / "build"], check=True, capture_output=True)
    return place / "build/lib"


def install(libraries: Path, site: Path, namespace: str) -> Path:
    """Makes of it what pip installs from a wheel; returns the folder of the op."""
    package = site / "aged_kernels"
    (package / "aged").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "aged/aged.py").write_text(FUNCTION)
    for path in libraries.glob("libaged.*"):
        shutil.copy(path, package / "aged")
    write_site(site, {"name": "aged-wheel", "entry-points": {"pyxla.kernels": {namespace: "aged_kernels"}}}, {})
    return package / "aged"


def call(site: Path, namespace: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-P", "-c", CALL.format(namespace=namespace)]
    return subprocess.run(command, env=environment(site), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("release", RELEASED)
def test_wheel_of_a_release_is_loaded_and_called(tmp_path, release):
    # Namespaces came with op table 4.
    namespace = "xla_gpu" if release == 3 else "aged_ops"
    libraries = build(release, tmp_path / "repository", namespace)
    library = install(libraries, tmp_path / "site", namespace) / "libaged.so"
    assert (read_op_table(library).version, read_op_table(library).namespace) == (release, namespace)
    assert read_manifest(library).namespace == namespace
    result = call(tmp_path / "site", namespace)
    expected = f"[0.0, 2.5, 5.0, 7.5, 10.0] installed {release}\n[0.0, 2.0, 4.0, 6.0, 8.0]\n"
    assert (result.returncode, result.stdout) == (0, expected), result.stderr
    assert "Warning" not in result.stderr


def test_each_version_before_todays_has_an_archive():
    assert set(range(OP_TABLES.oldest, OP_TABLES.newest)) <= set(RELEASED) <= {*range(3, OP_TABLES.newest + 1)}
    assert sum(path.stat().st_size for path in RELEASED.values()) < 50_000 * len(RELEASED)


# Too old, too new


def tiny_library(folder: Path, version: int, more_bytes: int = 0) -> Path:
    """A library whose op table has this version and says that it is larger."""
    header = (ROOT / "pyxla/include/pyxla/ffi/op_table.h").read_text()
    header, count = re.subn(r"(kOpTableVersion = )\d+", rf"\g<1>{version}", header)
    assert count == 1
    (folder / "pyxla/ffi").mkdir(parents=True)
    # A header next to the source comes before the one in the folder of headers.
    header = header.replace("{sizeof(pyxla::OpTable),", f"{{sizeof(pyxla::OpTable) + {more_bytes},")
    (folder / "pyxla/ffi/op_table.h").write_text(header)
    source = folder / "tiny.cc"
    digest = 'namespace pyxla { extern const char kSourceDigest[] = "none"; }\n'
    source.write_text(TINY.replace("NAME", "simple_add").replace("static XLA", f"{digest}static XLA", 1))
    return compile_library(source, folder / "libsimple_add.so")


@pytest.mark.parametrize("version", [OP_TABLES.oldest - 1, OP_TABLES.newest + 1])
def test_op_table_that_is_too_old_or_too_new(tmp_path, version):
    library = tiny_library(tmp_path, version)
    with pytest.raises(VersionError) as error:
        read_op_table(library)
    assert error.value.message == f"simple_add: op table: expected version 3 to 4, got {version} in {library}"
    newer = ", or pip install --upgrade pyxla" if version > 4 else ""
    assert error.value.hint == f"devtool build simple_add --clean{newer}"


def test_op_table_of_another_size_than_its_version(tmp_path):
    with pytest.raises(pyxla.LibraryError, match=r"op table: expected 96 bytes in version 4, got 104 in "):
        read_op_table(tiny_library(tmp_path, 4, more_bytes=8))


@pytest.fixture
def too_new(tmp_path):
    """A site with pyxla's simple_add as a package of the namespace `later`, whose manifest names the next op table."""
    package = tmp_path / "later_kernels"
    (package / "simple_add").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "simple_add/simple_add.py").write_text(FUNCTION.replace("aged", "simple_add"))
    shutil.copy(BUILT / "libsimple_add.so", package / "simple_add")
    values = json.loads((BUILT / "libsimple_add.json").read_text())
    later = values | {"namespace": "later", "op_table": OP_TABLES.newest + 1}
    (package / "simple_add/libsimple_add.json").write_text(json.dumps(later))
    write_site(tmp_path, {"name": "later-wheel", "entry-points": {"pyxla.kernels": {"later": "later_kernels"}}}, {})
    return tmp_path


def test_wheel_that_is_too_new_leaves_the_other_ops(too_new):
    """One warning at the import; the op itself raises."""
    script = """
import torch, torch_xla
x = torch.ones(2)
print(torch.ops.xla_gpu.simple_add(x.to(torch_xla.device()), x.to(torch_xla.device())).cpu().tolist())
torch.ops.later.simple_add(x.to(torch_xla.device()))
"""
    command = [sys.executable, "-P", "-c", script]
    result = subprocess.run(command, env=environment(too_new), capture_output=True, text=True, check=False)
    message = (
        f"simple_add: op table: expected version {OP_TABLES}, got {OP_TABLES.newest + 1} in "
        f"{too_new}/later_kernels/simple_add/libsimple_add.so\n\nhint: pip install --upgrade pyxla\n"
    )
    assert (result.returncode, result.stdout) == (1, "[2.0, 2.0]\n"), result.stderr
    assert result.stderr.count(f"UserWarning: {message}") == 1
    assert result.stderr.endswith(f"pyxla.errors.VersionError: {message}")


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        (MANIFESTS.newest + 1, "pip install --upgrade pyxla"),
        (MANIFESTS.oldest - 1, "pip install --upgrade later-wheel"),
    ],
)
def test_manifest_that_is_too_old_or_too_new(too_new, monkeypatch, version, hint):
    folder = too_new / "later_kernels"
    package = packages.KernelPackage("later", "later_kernels", folder, "later-wheel")
    monkeypatch.setattr(packages, "kernel_packages", lambda: (package,))
    manifest = folder / "simple_add/libsimple_add.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": version}))
    with pytest.raises(VersionError) as error:
        load_library("simple_add", manifest.with_suffix(".so"), "installed", "later")
    assert error.value.message == f"simple_add: manifest: expected format 1 to 2, got {version} in {manifest}"
    assert error.value.hint == hint


def test_verify_shows_a_wheel_that_is_too_new(too_new):
    result = run(ROOT, "verify", str(too_new))
    assert result.returncode == 1
    assert "simple_add: op table: expected version 3 to 4, got 5 in " in result.stderr
    assert "Traceback" not in result.stderr
    assert re.search(r"^ *manifest .* differs", result.stdout, re.MULTILINE)


def test_list_and_doctor_name_a_library_that_is_too_new(too_new, monkeypatch):
    library = too_new / "later_kernels/simple_add/libsimple_add.so"
    monkeypatch.setattr(find, "library_path", lambda op, namespace: (library, "checkout"))
    entry = library_state("simple_add")
    message = f"simple_add: op table: expected version 3 to 4, got 5 in {library}"
    assert (entry["state"], entry["reason"]) == ("unsupported", message)
    doctor = checks.Doctor()
    doctor.check("op", lambda: checks._op({"op": "simple_add"} | entry))
    line = doctor.lines["op"]
    assert (line.status, line.found) == ("failed", f"unsupported: {message}")
    assert line.hint == "devtool build simple_add --clean"


# The recipe, and the page


@pytest.mark.parametrize(("asked", "hint"), [("2", "pip install --upgrade pyxla"), ("0", "change the command")])
def test_command_for_another_recipe(tmp_path, asked, hint):
    done = configure(pyxla.cmake_dir(), tmp_path, f"-DPYXLA_KERNELS={ROOT / 'kernels'}", f"-DPYXLA_RECIPE={asked}")
    assert done.returncode != 0
    assert f"build: PYXLA_RECIPE: expected 1 to 1, got '{asked}'\n" in done.stderr
    assert f"hint: {hint}" in done.stderr


def test_page_has_the_versions_of_the_code():
    def stated(file: str, pattern: str) -> str:
        (number,) = re.findall(pattern, (ROOT / "pyxla" / file).read_text())
        return number

    recipes = "cmake/CMakeLists.txt"
    oldest, newest = (stated(recipes, rf"set\(PYXLA_{name} (\d+)\)") for name in ("OLDEST_RECIPE", "RECIPE_VERSION"))
    headers = stated("include/pyxla/version.h", r"#define PYXLA_HEADERS_VERSION (\d+)")
    table = stated("include/pyxla/ffi/op_table.h", r"kOpTableVersion = (\d+);")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    row = [project["version"], str(OP_TABLES), str(MANIFESTS), headers, f"{oldest} to {newest}"]
    rows = page("docs/concept/versions.md").text.partition("<!-- versions -->")[2].strip().split("\n\n")[0].splitlines()
    assert [cell.strip() for cell in rows[-1].strip("|").split("|")] == row
    assert table == str(OP_TABLES.newest)
    manifest = read_manifest(BUILT / "libsimple_add.so")
    written = (manifest.format, manifest.op_table, manifest.headers, manifest.recipe)
    assert written == (MANIFESTS.newest, int(table), int(headers), int(newest))
