"""`devtool verify`: its output for good and bad libraries, folders, wheels and tarballs."""

import io
import json
import shutil
import subprocess
import tarfile
import zipfile

import pytest
from click.testing import CliRunner

from devtool import project
from devtool.cli import cli
from devtool.release.system_needs import Needs, read_needs
from pyxla.library.manifest import file_digest
from tests.conftest import ROOT
from tests.devtool_tree import Tree

BUILT = ROOT / "build/lib"
NAMES = ("libsimple_add.so", "libsimple_add.json")
INSIDE = "pyxla_kernels/simple_add"


@pytest.fixture
def library(tmp_path):
    """A copy of simple_add's library and its manifest."""
    (tmp_path / "lib").mkdir()
    for name in NAMES:
        shutil.copy(BUILT / name, tmp_path / "lib")
    return tmp_path / "lib/libsimple_add.so"


def wheel(place, *names, inside=INSIDE):
    with zipfile.ZipFile(place / "ops.whl", "w") as archive:
        for name in names:
            archive.write(BUILT / name, f"{inside}/{name}")
        archive.writestr("pyxla/__init__.py", "")
    return place / "ops.whl"


def tarball(place, *members):
    """Members are (TarInfo, content)."""
    with tarfile.open(place / "ops.tar.gz", "w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return place / "ops.tar.gz"


def run(*arguments) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["verify", *map(str, arguments)], prog_name="devtool")
    return result.exit_code, result.stdout, result.stderr


def reports(*arguments) -> list[dict]:
    return [json.loads(line) for line in run(*arguments, "--json")[1].splitlines()]


def differences(*arguments) -> list[str]:
    """The differences of the one library; checks that stderr names them too and that the command fails."""
    status, output, errors = run(*arguments, "--json")
    (report,) = map(json.loads, output.splitlines())
    found = report["differences"]
    summary = f"got {len(found)} difference{'s' * (len(found) > 1)} (see above)"
    assert status == 1 and errors.splitlines()[: len(found)] == found
    assert errors.splitlines()[len(found)].endswith(summary) and "\n\nhint: " in errors
    assert sum(verdict == "differs" for verdict in report["verdicts"].values()) > 0
    return found


def test_good_library_as_a_table(library):
    status, output, errors = run(library)
    assert (status, errors) == (0, "")
    manifest = json.loads(library.with_suffix(".json").read_text())
    rows = {line.split()[0]: line.split() for line in output.splitlines() if line.strip()}
    assert output.splitlines()[0] == str(library)
    for part in ("library", "manifest", "sha256", "source_digest", "compiler", "flags_digest", "needs", "versions"):
        assert rows[part][-1] == "ok"
    for part in ("sha256", "source_digest", "flags_digest"):
        assert rows[part][1] == manifest[part][:12]
    assert "GLIBCXX_3.4" in output and manifest["compiler"].split()[1].rstrip(",") in output


def test_good_library_as_json(library):
    (report,) = reports(library)
    manifest = json.loads(library.with_suffix(".json").read_text())
    fields = ("op", "sha256", "source_digest", "compiler", "flags", "flags_digest", "cuda_architectures")
    assert {name: report[name] for name in (*fields, "ffi_api_version")} == {
        name: manifest[name] for name in (*fields, "ffi_api_version")
    }
    assert report["library"] == str(library) and report["differences"] == []
    assert "libstdc++.so.6" in report["needs"] and "libcuda.so.1" not in report["needs"]
    verdicts = report["verdicts"]
    assert verdicts.pop("nixpkgs") == "no release here" and set(verdicts.values()) == {"ok"}


def test_folder_wheel_and_tarball(library, tmp_path):
    for name in ("librms_norm.so", "librms_norm.json"):
        shutil.copy(BUILT / name, library.parent)
    members = [(tarfile.TarInfo(f"ops-1/lib/{name}"), (BUILT / name).read_bytes()) for name in NAMES]
    packed = [wheel(tmp_path, *NAMES), tarball(tmp_path, *members)]
    assert run(library.parent, *packed)[0] == 0
    assert [report["library"] for report in reports(library.parent, *packed)] == [
        str(library.parent / "librms_norm.so"),
        str(library),
        f"{packed[0]}:{INSIDE}/libsimple_add.so",
        f"{packed[1]}:ops-1/lib/libsimple_add.so",
    ]


def test_op_whose_sources_are_not_here(library, tmp_path, monkeypatch):
    monkeypatch.setattr(project, "kernels", lambda: tmp_path)
    assert reports(library)[0]["verdicts"]["source_digest"] == "no sources here"
    assert run(library)[0] == 0


def test_sources_that_changed(library, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels")
    (tmp_path / "kernels/simple_add/simple_add.h").write_text("// changed\n")
    monkeypatch.setattr(project, "kernels", lambda: tmp_path / "kernels")
    (found,) = differences(library)
    assert found.startswith("simple_add: source_digest: expected ") and str(tmp_path / "kernels") in found


def test_changed_library(library):
    """The op table is not read, because that would run the library's code."""
    expected = file_digest(library)[:12]
    library.write_bytes(library.read_bytes() + b"x")
    assert differences(library) == [
        f"simple_add: library: expected SHA-256 {expected} (libsimple_add.json), "
        f"got {file_digest(library)[:12]} in {library}"
    ]
    assert reports(library)[0]["verdicts"]["compiler"] == "op table not read"


def test_changed_library_in_a_wheel(library, tmp_path):
    with zipfile.ZipFile(wheel(tmp_path, "libsimple_add.json"), "a") as archive:
        archive.writestr(f"{INSIDE}/libsimple_add.so", library.read_bytes() + b"x")
    (found,) = differences(tmp_path / "ops.whl")
    assert found.endswith(f" in {tmp_path}/ops.whl:{INSIDE}/libsimple_add.so")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compiler": "GNU 1"}, r"compiler: expected '[^']+' (the op table), got 'GNU 1' in the manifest"),
        ({"flags": "-O0"}, "flags_digest: expected"),
        ({"library": "libother.so"}, "manifest: expected that of libsimple_add.so, got that of libother.so"),
        ({"sha256": None}, "manifest: expected sha256 as the build writes it, got None"),
    ],
    ids=["compiler", "flags", "library", "no digest"],
)
def test_changed_manifest(library, changes, message):
    manifest = library.with_suffix(".json")
    whole = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(whole | changes))
    (found,) = differences(library)
    assert found.startswith(f"simple_add: {message}".replace("'[^']+'", repr(whole["compiler"])))


def test_no_manifest(library):
    library.with_suffix(".json").unlink()
    assert differences(library) == [f"simple_add: manifest: expected libsimple_add.json beside {library}, got none"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (0.5, "library: expected 1[0-9]+ bytes, as its ELF header says"),
        (b"not a library", "library: expected a 64-bit ELF library"),
    ],
    ids=["cut short", "text"],
)
def test_file_that_is_no_whole_library(library, content, message):
    whole = library.read_bytes()
    library.write_bytes(whole[: int(len(whole) * content)] if isinstance(content, float) else content)
    (found,) = differences(library)
    assert found.startswith(f"simple_add: {message.partition('1[')[0]}")


def test_bad_input_leaves_no_traceback(library, tmp_path):
    """As a separate process, with an exit status for scripts."""
    library.write_bytes(library.read_bytes()[:100])
    tree = Tree(tmp_path / "tree")
    result = tree.run("verify", str(library))
    assert result.returncode == 1
    assert result.stderr.startswith("simple_add: library: expected ") and "Traceback" not in result.stderr


def refused(*arguments) -> tuple[int, str]:
    status, output, errors = run(*arguments)
    assert output == "" and errors.startswith("Error: ") is False and "\n\nhint: " in errors, errors
    return status, errors.partition("\n")[0]


def test_paths_that_are_no_libraries(tmp_path):
    text, empty = tmp_path / "notes.txt", tmp_path / "empty"
    text.write_text("notes")
    empty.mkdir()
    status, message = refused(tmp_path / "gone")
    assert (status, message) == (2, f"verify: PATH: expected a file or folder, got none at {tmp_path / 'gone'}")
    status, message = refused(text)
    assert (status, message) == (2, f"verify: PATH: expected a library, wheel or release tarball, got {text}")
    status, message = refused(empty)
    assert (status, message) == (1, f"verify: PATH: expected libraries lib<op>.so, got none in {empty}")
    archive = wheel(tmp_path)
    assert refused(archive) == (1, f"verify: PATH: expected libraries lib<op>.so, got none in {archive}")


@pytest.mark.parametrize("kind", ["wheel", "tarball"])
@pytest.mark.parametrize("damage", [0, 100, 0.5, "flipped", "text"])
def test_damaged_archive(tmp_path, kind, damage):
    members = [(tarfile.TarInfo(name), (BUILT / name).read_bytes()) for name in NAMES]
    path = wheel(tmp_path, *NAMES) if kind == "wheel" else tarball(tmp_path, *members)
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 0xFF
    elif damage == "text":
        content = b"not an archive" * 100
    else:
        del content[int(len(content) * damage) if isinstance(damage, float) else damage :]
    path.write_bytes(content)
    status, message = refused(path)
    assert status == 1 and message.startswith("verify: PATH: expected a whole archive, got ")
    assert message.endswith(f" in {path}")


@pytest.mark.parametrize("name", ["../libsimple_add.so", "/tmp/libsimple_add.so", "a/../../b.txt"])
def test_entry_that_leaves_the_archive(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "ops.whl", "w") as archive:
        archive.writestr(name, "x")
    packed = [tmp_path / "ops.whl", tarball(tmp_path, (tarfile.TarInfo(name), b"x"))]
    for path in packed:
        expected = f"verify: PATH: expected entries that stay in their folder, got {name} in {path}"
        assert refused(path) == (1, expected)
    assert [path.name for path in tmp_path.parent.glob("libsimple_add.so")] == []


def test_link_or_second_library_in_an_archive(tmp_path):
    link = tarfile.TarInfo("lib/libsimple_add.so")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    twice = [(tarfile.TarInfo("lib/libsimple_add.so"), b"x")] * 2
    for members in ([(link, b"")], twice):
        status, message = refused(tarball(tmp_path, *members))
        assert status == 1
        assert "expected each library and manifest once, as a plain file, got lib/libsimple_add.so in " in message


def test_needs_that_an_old_system_does_not_meet():
    good = Needs(
        ("libc.so.6", "ld-linux-aarch64.so.1"), (), ("GLIBC_2.35", "GLIBC_2.9", "GLIBCXX_3.4.30", "GCC_12.0.0")
    )
    assert list(good.problems()) == [] and good.highest() == ["GCC_12.0.0", "GLIBCXX_3.4.30", "GLIBC_2.35"]
    bad = Needs(
        ("libcudart.so.13", "libm.so.6"),
        ("/opt/lib",),
        ("GLIBC_2.36", "GLIBC_2.9", "GLIBC_ABI_DT_RELR", "GLIBC_PRIVATE", "CXXABI_1.3.14", "GLIBCXX_3.4.9", "SSL_3"),
    )
    known = "versions of GLIBC, GLIBCXX, CXXABI, GCC"
    assert list(bad.problems()) == [
        ("needs", "a library of every system", "libcudart.so.13"),
        ("needs", "no RPATH and no RUNPATH", "/opt/lib"),
        ("versions", "at most CXXABI_1.3.13", "CXXABI_1.3.14"),
        ("versions", "at most GLIBC_2.35", "GLIBC_2.36"),
        ("versions", known, "GLIBC_ABI_DT_RELR"),
        ("versions", "at most GLIBC_2.35", "GLIBC_PRIVATE"),
        ("versions", known, "SSL_3"),
    ]


@pytest.mark.parametrize("tag", ["rpath", "runpath"])
def test_needs_are_read_from_the_file(tmp_path, tag):
    (tmp_path / "new.map").write_text("GLIBC_2.99 { global: future; };\n")
    (tmp_path / "new.c").write_text("int future(void) { return 1; }\n")
    (tmp_path / "ours.c").write_text("int future(void);\nint ours(void) { return future(); }\n")
    options = ["gcc", "-shared", "-fPIC", "-o"]
    subprocess.run([*options, "libnew.so", "new.c", "-Wl,--version-script=new.map"], cwd=tmp_path, check=True)
    dtags = f"-Wl,--{'en' if tag == 'runpath' else 'dis'}able-new-dtags"
    library = ["libours.so", "ours.c", "libnew.so", "-Wl,-rpath,/opt/lib", dtags]
    subprocess.run([*options, *library], cwd=tmp_path, check=True)
    needs = read_needs(tmp_path / "libours.so")
    assert "libnew.so" in needs.libraries and needs.search_paths == ("/opt/lib",)
    assert "GLIBC_2.99" in needs.highest()
    found = reports(tmp_path / "libours.so")[0]["differences"]
    assert "ours: versions: expected at most GLIBC_2.35, got GLIBC_2.99" in found
    assert "ours: needs: expected a library of every system, got libnew.so" in found
