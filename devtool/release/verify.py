"""What `devtool verify` shows: whether each library is what its manifest says, and what it needs from a system.

Like `devtool list`, it reads a library's table with pyxla, which imports torch (2 s).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from devtool import project
from devtool.errors import MISUSED, DevtoolError
from devtool.release.archives import is_archive, is_wrapped, unpack_libraries
from devtool.release.system_needs import read_needs

# Fields of the manifest that the op table has too.
_FIELDS = ("namespace", "source_digest", "compiler", "flags_digest", "cuda_architectures", "ffi_api_version")
# The parts of a report, in the order in which they are shown.
_PARTS = ("library", "manifest", "contract", "op", "sha256", *_FIELDS, "nixpkgs", "release", "wrapped")
_PARTS += ("needs", "versions")
_DIFFERS = "differs"


class Report:
    """What was found about one library.

    Args:
        library: its path, or the archive's path and the name inside.
        file: the path of the file now.

    Attributes:
        found: part -> value.
        verdicts: part -> "ok", "differs", or why there was nothing to compare with.
        differences: messages in the form of all errors.
    """

    def __init__(self, library: str, file: Path):
        self.library = library
        self.file = file
        self.op = file.name.removeprefix("lib").removesuffix(".so")
        self.found: dict[str, Any] = {}
        self.verdicts: dict[str, str] = {}
        self.differences: list[str] = []

    def compare(self, part: str, expected: object, got: object, expected_text: str, got_text: str) -> None:
        """Notes whether a part is as expected."""
        if expected == got:
            self.verdicts.setdefault(part, "ok")
        else:
            self.differ(part, f"{self.op}: {part}: expected {expected_text}, got {got_text}")

    def differ(self, part: str, message: str) -> None:
        """Notes a difference."""
        self.verdicts[part] = _DIFFERS
        if self.library != str(self.file):  # unpacked, at a path that means nothing to the reader
            message = message.replace(f"{self.file.parent}/", self.library.removesuffix(self.file.name))
        self.differences.append(message)

    @contextmanager
    def noting(self, part: str) -> Iterator[None]:
        """Notes pyxla's error about a part as a difference."""
        from pyxla.errors import LibraryError

        try:
            yield
            self.verdicts.setdefault(part, "ok")
        except LibraryError as error:
            self.differ(part, error.message)

    def as_json(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return {
            "library": self.library,
            "op": self.op,
            **self.found,
            "verdicts": self.verdicts,
            "differences": self.differences,
        }


def verify(paths: Sequence[str]) -> list[Report]:
    """A report of every library among the paths: libraries, folders, wheels, release tarballs.

    Raises:
        DevtoolError: a path is none of these, or contains no library.
    """
    reports = []
    for path in map(Path, paths):
        with tempfile.TemporaryDirectory(prefix="devtool-verify-") as scratch:
            reports += [_examine(Report(name, file)) for name, file in _libraries(path, Path(scratch)).items()]
    return reports


def _libraries(path: Path, scratch: Path) -> dict[str, Path]:
    """The name to show -> the file."""
    hint = "name a lib<op>.so, a folder of them, a wheel (.whl) or a release tarball (.tar.gz)"
    if not path.exists():
        raise DevtoolError(f"verify: PATH: expected a file or folder, got none at {path}", hint, MISUSED)
    if path.is_dir():
        found = {str(file): file for file in sorted(path.rglob("lib*.so")) if file.is_file() and not is_wrapped(file)}
    elif is_archive(path):
        found = {f"{path}:{name}": file for name, file in sorted(unpack_libraries(path, scratch).items())}
    elif path.suffix == ".so":
        found = {str(path): path}
    else:
        raise DevtoolError(f"verify: PATH: expected a library, wheel or release tarball, got {path}", hint, MISUSED)
    if not found:
        raise DevtoolError(f"verify: PATH: expected libraries lib<op>.so, got none in {path}", hint)
    return found


def _examine(report: Report) -> Report:
    from pyxla.errors import LibraryError, mismatch
    from pyxla.library.manifest import (
        check_digest,
        check_wrapped,
        file_digest,
        manifest_path,
        read_manifest,
        wrapped_path,
    )
    from pyxla.library.op_table import check_elf, read_op_table

    file, manifest, table = report.file, None, None
    with report.noting("manifest"):
        manifest = read_manifest(file)
        if manifest is None:
            raise LibraryError(mismatch(report.op, "manifest", f"{manifest_path(file).name} beside {file}", "none"))
    with report.noting("library"):
        check_elf(file)
    if report.verdicts["library"] == _DIFFERS:
        return report
    report.found["sha256"] = file_digest(file)
    if manifest:
        with report.noting("sha256"):
            check_digest(file, manifest)
        if manifest.wrapped:
            wrapped = manifest.wrapped
            report.found["wrapped"] = f"{wrapped.name} {wrapped.version}, {wrapped.licence}"
            with report.noting("wrapped"):
                check_wrapped(file, manifest)
    # Loading a library runs its code, and a library that does not match a manifest may be damaged.
    if report.verdicts.get("sha256") == "ok" and report.verdicts.get("wrapped") != _DIFFERS:
        with report.noting("library"):
            table = read_op_table(file)
            if table is None:
                raise LibraryError(mismatch(report.op, "library", "an op table", f"none in {file}"))
    if manifest:
        _compare_manifest(report, manifest, table)
        _compare_release(report, manifest)
    if table or manifest:
        _compare_sources(report, table or manifest)
    _compare_needs(report, wrapped_path(file, manifest) if manifest else None)
    return report


def _compare_manifest(report: Report, manifest: Any, table: Any) -> None:
    from pyxla.library.manifest import contradictions

    report.found |= {name: getattr(manifest, name) for name in (*_FIELDS, "flags")}
    numbers = {"op table": manifest.op_table, "headers": manifest.headers, "recipe": manifest.recipe}
    report.found["contract"] = [f"manifest {manifest.format}", *(f"{name} {n}" for name, n in numbers.items() if n)]
    report.verdicts["contract"] = "ok"
    name = report.file.name
    report.compare("manifest", name, manifest.library, f"that of {name}", f"that of {manifest.library}")
    digest = hashlib.sha256(manifest.flags.encode()).hexdigest()
    said = f"{manifest.flags_digest[:12]} (the manifest)"
    report.compare("flags_digest", manifest.flags_digest, digest, said, f"flags of digest {digest[:12]}")
    for part in _FIELDS:
        report.verdicts.setdefault(part, "ok" if table else "op table not read")
    for part, (expected, got) in (contradictions(manifest, table) if table else {}).items():
        report.differ(part, f"{report.op}: {part}: expected {expected!r} (the op table), got {got!r} in the manifest")


def _compare_release(report: Report, manifest: Any) -> None:
    """Compares the manifest with the release's manifest.json, if it is in the same folder."""
    report.found["nixpkgs"] = manifest.nixpkgs
    path = report.file.with_name("manifest.json")
    try:
        release = json.loads(path.read_text(encoding="utf-8"))
        others = {other["library"]: other for other in release["libraries"]}
        report.found["release"] = f"{release['version']}, {release['system']}"
    except FileNotFoundError:
        report.verdicts["nixpkgs"] = "no release here"
        return
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        message = f"{report.op}: release: expected manifest.json as the release has it, got {error!r} in {path}"
        report.differ("release", message)
        return
    nixpkgs = release.get("nixpkgs")
    report.compare(
        "nixpkgs", nixpkgs, manifest.nixpkgs, f"{nixpkgs or 'none'} (manifest.json)", manifest.nixpkgs or "none"
    )
    own = json.loads(report.file.with_suffix(".json").read_text(encoding="utf-8"))
    listed = others.get(manifest.library, {})
    changed = sorted(name for name in own.keys() | listed.keys() if own.get(name) != listed.get(name))
    got = f"another {', '.join(changed)}" if listed else f"no {manifest.library}"
    report.compare("release", own, listed, f"{report.file.stem}.json in manifest.json", f"{got} in {path}")


def _compare_sources(report: Report, built: Any) -> None:
    from pyxla.library.source_digest import source_digest

    try:
        kernels = project.kernels()
    except DevtoolError:  # an installed devtool, outside a checkout
        kernels = None
    here = source_digest(kernels, built.op) if kernels else None
    report.found.setdefault("source_digest", built.source_digest)
    if here is not None:
        expected = f"{here[:12]} (the sources in {kernels / built.op})"
        report.compare("source_digest", here, built.source_digest, expected, built.source_digest[:12])
    elif report.verdicts.get("source_digest") != _DIFFERS:
        report.verdicts["source_digest"] = "no sources here"


def _compare_needs(report: Report, wrapped: Path | None) -> None:
    try:
        needs = read_needs(report.file)
    except ValueError as error:
        report.differ("needs", f"{report.op}: needs: expected an ELF library that can be read, got {error}")
        return
    report.found |= {"needs": needs.libraries, "versions": needs.highest()}
    for part in ("needs", "versions"):
        report.verdicts[part] = "ok"
    for part, expected, got in needs.problems(wrapped):
        report.differ(part, f"{report.op}: {part}: expected {expected}, got {got}")


def print_reports(reports: Sequence[Report]) -> None:
    """Prints a table per library."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table

    console = Console(highlight=False)
    for report in reports:
        table = Table("part", Column("found", overflow="fold"), "verdict", box=SIMPLE_HEAD, padding=0)
        for part in (part for part in _PARTS if part in report.verdicts):
            verdict = report.verdicts[part]
            table.add_row(
                part, _text(part, report.found.get(part, "")), verdict, style="red" if verdict == _DIFFERS else ""
            )
        click.echo(report.library)
        console.print(table)


def print_differences(reports: Sequence[Report]) -> None:
    """Prints what differs, on stderr.

    Raises:
        DevtoolError: something differs.
    """
    differences = [difference for report in reports for difference in report.differences]
    for difference in differences:
        click.echo(difference, err=True)
    if differences:
        got = f"{len(differences)} difference{'s' * (len(differences) > 1)} (see above)"
        message = f"verify: libraries: expected a match with manifests, sources and systems, got {got}"
        raise DevtoolError(message, "build them with devtool build --clean, or fetch them again")


def _text(part: str, value: Any) -> str:
    if value is None:
        return "outside Nix"
    if part.endswith(("digest", "sha256")):
        return value[:12]
    separator = "." if part == "ffi_api_version" else ", "
    return value if isinstance(value, str) else separator.join(map(str, value))
