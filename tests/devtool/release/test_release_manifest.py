"""manifest.json, the manifests of all libraries of a release: nix/release.py writes it, `devtool verify` reads it."""

import json
import shutil
import subprocess
import sys
import tarfile

import pytest
from click.testing import CliRunner

from devtool.cli import cli
from tests.conftest import ROOT

BUILT = ROOT / "build/lib"
NIXPKGS = "25.05.20251104.ca534a7 ca534a76c4afb2bdc07b681dbc11b453bab21af8"


@pytest.fixture
def folder(tmp_path):
    """Two libraries, as if nixpkgs had built them."""
    (tmp_path / "lib").mkdir()
    for op in ("simple_add", "rms_norm"):
        for suffix in ("so", "json"):
            shutil.copy(BUILT / f"lib{op}.{suffix}", tmp_path / "lib")
        change(tmp_path / f"lib/lib{op}.json", nixpkgs=NIXPKGS)
    return tmp_path / "lib"


def change(manifest, **values):
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | values))


def release(folder) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "nix/release.py", folder, "1.2.3", "x86_64-linux"]
    return subprocess.run(command, capture_output=True, text=True)


def verify(*paths) -> tuple[list[dict], str]:
    """The reports and stderr."""
    result = CliRunner().invoke(cli, ["verify", "--json", *map(str, paths)], prog_name="devtool")
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == any(report["differences"] for report in reports)
    return reports, result.stderr


def test_release_says_what_all_libraries_have_in_common(folder):
    manifests = [json.loads((folder / f"lib{op}.json").read_text()) for op in ("rms_norm", "simple_add")]
    assert release(folder).returncode == 0
    found = json.loads((folder / "manifest.json").read_text())
    compilers = manifests[0]["compiler"].split(", ")
    assert found == {
        "version": "1.2.3", "system": "x86_64-linux", "nixpkgs": NIXPKGS, "compilers": compilers,
        "libraries": manifests,
    }  # fmt: skip
    change(folder / "librms_norm.json", compiler=f"{manifests[0]['compiler']}, Triton 3.4.0")
    assert release(folder).returncode == 0
    assert json.loads((folder / "manifest.json").read_text())["compilers"] == compilers


def test_libraries_that_make_no_release(folder):
    change(folder / "libsimple_add.json", nixpkgs=None)
    result = release(folder)
    message = f"release: nixpkgs: expected one for all libraries, got {NIXPKGS}, None\n"
    assert (result.returncode, result.stderr) == (1, message)
    with (folder / "librms_norm.so").open("ab") as library:
        library.write(b"x")
    assert release(folder).stderr.startswith("release: librms_norm.json: expected SHA-256 ")
    assert not (folder / "manifest.json").exists()


def test_verified_release(folder, tmp_path):
    """As a folder and as a tarball, whose libraries are named apart; a table names the nixpkgs."""
    assert release(folder).returncode == 0
    with tarfile.open(tmp_path / "release.tar.gz", "w:gz") as tarball:
        tarball.add(folder, "pyxla-1.2.3/lib")
    reports, errors = verify(folder, tmp_path / "release.tar.gz")
    assert len(reports) == 4 and errors == ""
    for report in reports:
        assert (report["nixpkgs"], report["release"]) == (NIXPKGS, "1.2.3, x86_64-linux")
        assert report["verdicts"]["nixpkgs"] == report["verdicts"]["release"] == "ok"
    table = CliRunner().invoke(cli, ["verify", str(folder)], prog_name="devtool").stdout
    assert all(table.count(part) == 2 for part in NIXPKGS.split())
    narrow = CliRunner().invoke(cli, ["verify", str(folder)], prog_name="devtool", env={"COLUMNS": "60"}).stdout
    assert max(map(len, narrow.splitlines()[1:12])) <= 60 and "\N{HORIZONTAL ELLIPSIS}" not in narrow


def test_library_outside_nix(folder):
    change(folder / "libsimple_add.json", nixpkgs=None)
    (report,), errors = verify(folder / "libsimple_add.so")
    assert (report["nixpkgs"], report["verdicts"]["nixpkgs"], errors) == (None, "no release here", "")
    table = CliRunner().invoke(cli, ["verify", str(folder / "libsimple_add.so")], prog_name="devtool").stdout
    assert "outside Nix" in table


def test_release_of_other_libraries(folder, tmp_path):
    """A library that is not the release's, and one that the release does not have."""
    assert release(folder).returncode == 0
    change(folder / "libsimple_add.json", nixpkgs=None)
    shutil.copy(folder / "librms_norm.so", folder / "libother.so")
    change(folder / "librms_norm.json", library="libother.so", op="other")
    (folder / "librms_norm.json").rename(folder / "libother.json")
    (folder / "librms_norm.so").unlink()
    with tarfile.open(tmp_path / "release.tar.gz", "w:gz") as tarball:
        tarball.add(folder, "lib")
    (other, simple_add), errors = verify(tmp_path / "release.tar.gz")
    place = f"in {tmp_path}/release.tar.gz:lib/manifest.json"
    assert simple_add["differences"] == [
        f"simple_add: nixpkgs: expected {NIXPKGS} (manifest.json), got none",
        f"simple_add: release: expected libsimple_add.json in manifest.json, got another nixpkgs {place}",
    ]
    assert (
        f"other: release: expected libother.json in manifest.json, got no libother.so {place}" in other["differences"]
    )
    assert all(difference in errors for difference in simple_add["differences"] + other["differences"])


@pytest.mark.parametrize("content", ["", "[]", '{"libraries": [1]}', '{"libraries": [], "version": "1"}', "[" * 100000])
def test_damaged_manifest_of_a_release(folder, content):
    (folder / "manifest.json").write_text(content)
    (report,), _ = verify(folder / "libsimple_add.so")
    (difference,) = report["differences"]
    assert difference.startswith("simple_add: release: expected manifest.json as the release has it, got ")
    assert difference.endswith(f" in {folder}/manifest.json") and report["verdicts"]["release"] == "differs"
