"""The flake, evaluated with nix/host as nixpkgs: its outputs, what an edit rebuilds, what it rejects."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from devtool.errors import DevtoolError
from devtool.release import nix
from tests.conftest import ROOT
from tests.flake import SYSTEMS, Flake, tracked_files

OPS = sorted({path.parent.name for file in ("*_ffi.cc", "implements") for path in (ROOT / "kernels").glob(f"*/{file}")})
needs_nix = pytest.mark.skipif(shutil.which("nix") is None, reason="needs nix: apt-get install nix-bin")


@pytest.fixture(scope="module")
def flake(tmp_path_factory):
    return Flake(tmp_path_factory.mktemp("flake"))


@pytest.fixture
def copy(flake, tmp_path):
    return flake.copy(tmp_path / "flake")


@needs_nix
def test_one_package_per_op_folder_and_the_release(flake):
    assert sorted(flake.derivations()) == sorted([*OPS, "default", "docs", "python", "wheel"])
    assert sorted(flake.derivations("aarch64-linux")) == sorted([*OPS, "default", "wheel"])


@needs_nix
@pytest.mark.parametrize("system", SYSTEMS)
def test_everything_evaluates(flake, system):
    for kind in ("checks", "devShells"):
        assert all(flake.value(f"{kind}.{system}", "builtins.mapAttrs (_: drv: drv.drvPath)").values())
    names = flake.value(f"legacyPackages.{system}.cpu", "builtins.mapAttrs (_: drv: drv.name)")
    assert names["rms_norm"].startswith("pyxla-rms_norm-cpu-") and "wheel" in names
    assert flake.value(f"apps.{system}.devtool.program").endswith("/bin/devtool")
    assert flake.value(f"formatter.{system}.name") == "pyxla-format"


@needs_nix
def test_hydra_jobs_name_each_package_of_each_system(flake):
    jobs = flake.value("hydraJobs", "builtins.mapAttrs (_: builtins.mapAttrs (_: builtins.attrNames))")
    assert all("rms_norm" in jobs["packages"][system] for system in SYSTEMS)
    assert "python" in jobs["packages"]["x86_64-linux"] and "python" not in jobs["packages"]["aarch64-linux"]
    expected = {"docs", "format", "libraries", "python", "scaffold", "template", "tests"}
    assert set(jobs["checks"]["x86_64-linux"]) == expected


@needs_nix
def test_same_derivations_from_another_path(flake, copy):
    assert copy.derivations() == flake.derivations()


@needs_nix
def test_edit_of_one_kernel_changes_that_library_and_what_collects_it(flake, copy):
    before = flake.derivations()
    source = copy.root / "kernels/rms_norm/rms_norm_host.cc"
    source.write_text(source.read_text() + "// edited\n")
    after = copy.derivations()
    assert {name for name in before if before[name] != after[name]} == {
        "rms_norm",
        "rms_norm_triton",  # its implementation, with the same host code
        "default",
        "wheel",
        "python",
        "docs",
    }


@needs_nix
@pytest.mark.parametrize(
    "name",
    [
        *("kernels/rms_norm/rms_norm.py", "kernels/_rms_norm/reference.py", "README.md", "nix/check_python.py"),
        *("pyxla/sync.py", "pyxla/library/find.py"),
    ],
)
def test_edit_of_what_no_library_is_made_from_changes_no_library(flake, copy, name):
    copy.write(name, "# edited\n")
    before, after = flake.derivations(), copy.derivations()
    assert [before[op] for op in (*OPS, "default")] == [after[op] for op in (*OPS, "default")]


@needs_nix
@pytest.mark.parametrize(
    "name", ["triton_kernels.py", "wrapped.json", "vendor/include/theirs.h", "vendor/libtheirs.so", "part/part.cuh"]
)
def test_edit_of_what_another_route_is_made_from_changes_that_library(flake, copy, name):
    copy.write(f"kernels/rms_norm_triton/{name}", "{}\n")  # wrapped.json is read
    before, after = flake.derivations(), copy.derivations()
    assert [op for op in OPS if before[op] != after[op]] == ["rms_norm_triton"]


@needs_nix
@pytest.mark.parametrize(
    "name",
    [
        *("pyxla/include/pyxla/ffi/op_table.h", "pyxla/include/pyxla/device/fresh.cuh"),
        *("pyxla/cmake/exports.map", "kernels/_family/value.h"),
    ],
)
def test_edit_of_what_all_libraries_share_changes_every_library(flake, copy, name):
    copy.write(name, "// edited\n")
    before, after = flake.derivations(), copy.derivations()
    assert all(before[op] != after[op] for op in OPS)


@needs_nix
def test_new_op_folder_touches_no_nix_file(flake, copy):
    copy.write("kernels/fresh/fresh_ffi.cc", "// sources\n")
    before, after = flake.derivations(), copy.derivations()
    assert set(after) - set(before) == {"fresh"}
    assert [after[op] for op in OPS] == [before[op] for op in OPS]
    assert after["default"] != before["default"]


@needs_nix
@pytest.mark.parametrize("name", ["default", "python", "Big", "with-dash", "9lives"])
def test_op_folder_with_a_name_that_cannot_be_one(copy, name):
    copy.write(f"kernels/{name}/{name}_ffi.cc", "// sources\n")
    error = copy.error()
    assert f"flake: kernels/{name}: expected a name of lower-case letters, digits and _" in error
    assert f"hint: git mv kernels/{name} " in error


@needs_nix
@pytest.mark.parametrize("file", ["half.cu", "half.py"])
def test_op_folder_without_the_file_that_registers_it(copy, file):
    copy.write(f"kernels/half/{file}", "")
    error = copy.error()
    assert "flake: kernels/half: expected half_ffi.cc, which registers the op, got none" in error
    assert "hint: devtool new-op half writes one" in error


@needs_nix
def test_folder_without_code_is_no_op(copy):
    copy.write("kernels/notes/README.md", "no code\n")
    assert "notes" not in copy.derivations()


@needs_nix
def test_unsupported_system(flake):
    result = flake.nix("eval", ".#lib.kernelPackages", "--apply", 'f: f { system = "riscv64-linux"; kernels = ./.; }')
    assert "flake: system: expected one of x86_64-linux aarch64-linux, got riscv64-linux" in result.stderr


@needs_nix
def test_without_the_tools_of_the_machine(copy):
    (copy.root / "nix/host/toolchain.json").unlink()
    error = copy.error()
    assert "nix/host: toolchain.json: expected the machine's tools, got none" in error
    assert "hint: run Nix by `devtool nix build`" in error


@needs_nix
def test_wheel_with_another_hash(copy):
    """The build stops at a file that differs from the lock. This test needs the package index, like every set-up."""
    path = copy.root / "nix/wheels.json"
    lock = json.loads(path.read_text())
    name = next(name for name in lock["hashes"] if name.startswith("iniconfig-"))
    path.write_text(json.dumps(lock | {"hashes": lock["hashes"] | {name: "sha256-" + "A" * 43 + "="}}))
    expression = "with import ./nix/host { }; (import ./nix/wheels.nix { pkgs = import ./nix/host { }; inherit stdenv; "
    expression += "python = python312; }).sets.dev.iniconfig.path"
    result = subprocess.run(
        ["nix", "build", "--impure", "--no-link", "-L", "--expr", expression.replace("./", f"{copy.root}/")],
        env=nix._environment(True), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "expected the wheel from the package index" in result.stderr:
        pytest.skip("needs the package index")
    assert result.returncode != 0
    assert f"nix: {name}: expected sha256-{'A' * 43}=, got sha256-" in result.stderr
    assert "devtool lock" in result.stderr


@pytest.mark.slow
@needs_nix
def test_cache_example_of_the_guide(copy, tmp_path):
    """The commands of docs/guide/nix.md, with a separate store for the other side."""
    block = re.search(r"```sh cache\n(.*?)```", (ROOT / "docs/guide/nix.md").read_text(), re.DOTALL)[1]
    shutil.copytree(ROOT / "devtool", copy.root / "devtool", ignore=shutil.ignore_patterns("__pycache__"))
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "devtool").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m devtool "$@"\n')
    (commands / "devtool").chmod(0o755)
    env = nix._environment(True) | {
        "HOME": str(tmp_path), "PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(copy.root),
        "PYXLA_NIXPKGS": "host",
    }  # fmt: skip
    result = subprocess.run(
        ["bash", "-euc", block], cwd=copy.root, env=env, capture_output=True, text=True, check=False
    )
    if "expected the wheel from the package index" in result.stderr:
        pytest.skip("needs the package index")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["libsimple_add.json", "libsimple_add.so"]


# The names of nixpkgs that the flake uses


def used_names(pattern: str) -> set[str]:
    files = [ROOT / "flake.nix", *(ROOT / "nix").glob("*.nix")]
    texts = [re.sub(r"#.*", "", path.read_text()) for path in files]
    return {name for text in texts for name in re.findall(pattern, text)}


def test_surface_of_nixpkgs_is_listed():
    """nix/host/surface.json was compared with the real nixpkgs; a new name must be compared too."""
    surface = json.loads((ROOT / "nix/host/surface.json").read_text())
    assert used_names(r"\blib\.([a-z]\w*)") == set(surface["lib"])
    assert set(surface["lib"]) <= set((ROOT / "nix/host/nixpkgs-lib.txt").read_text().split())
    # The compilers are named by preference; the pinned nixpkgs and the stand-in have the first.
    compilers = (
        re.search(r'\[ ("gcc12Stdenv".*?) \]', (ROOT / "nix/default.nix").read_text())[1].replace('"', "").split()
    )
    assert (used_names(r"\bpkgs\.(\w+)") - {"lib"}) | {compilers[0]} == set(surface["pkgs"])


@needs_nix
def test_stand_in_has_the_surface_and_little_more(flake):
    surface = json.loads((ROOT / "nix/host/surface.json").read_text())
    expression = "builtins.attrNames (import {0}/nix/host/lib.nix)"
    result = flake.nix("eval", "--impure", "--json", "--expr", expression.format(flake.root))
    assert set(json.loads(result.stdout)) == set(surface["lib"])
    result = flake.nix(
        "eval", "--impure", "--json", "--expr", f"builtins.attrNames (import {flake.root}/nix/host {{ }})"
    )
    # `nix develop` itself uses bashInteractive.
    assert set(json.loads(result.stdout)) == {*surface["pkgs"], "lib", "system", "bashInteractive"}


# The template


def test_template_is_what_init_writes(tmp_path):
    command = [sys.executable, "-P", "-m", "devtool", "init", "my-kernels"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    written, template = tmp_path / "my-kernels", ROOT / "templates/kernel"
    files = {str(path.relative_to(written)): path.read_text() for path in written.rglob("*") if path.is_file()}
    kept = {name.removeprefix("templates/kernel/") for name in tracked_files() if name.startswith("templates/kernel/")}
    assert files == {name: (template / name).read_text() for name in kept}


@needs_nix
def test_template_evaluates_against_this_flake(flake, tmp_path):
    mine = flake.repository_from_template(tmp_path / "mine")
    apply = "builtins.mapAttrs (_: drv: drv.drvPath)"
    for output, names in (
        ("packages.x86_64-linux", ["default", "scaled"]),
        ("packages.aarch64-linux", ["default", "scaled"]),
        ("checks.x86_64-linux", ["tests"]),
        ("devShells.x86_64-linux", ["cpu", "default"]),
    ):
        result = flake.nix("eval", "--json", f".#{output}", "--apply", apply, cwd=mine)
        assert result.returncode == 0, result.stderr
        assert list(json.loads(result.stdout)) == names


@needs_nix
def test_op_folder_that_git_does_not_know(copy, monkeypatch):
    monkeypatch.setattr(nix.project, "root", lambda: copy.root)
    (copy.root / "kernels/shy").mkdir()
    (copy.root / "kernels/shy/shy_ffi.cc").write_text("// sources\n")
    expected = "nix: kernels/shy: expected files that git tracks, got untracked ones\n\nhint: git add -N kernels/shy"
    with pytest.raises(DevtoolError, match=expected):
        nix.run_nix(["build"], "host")
    copy.git("add", "-N", "kernels/shy")
    assert "shy" in copy.derivations()
