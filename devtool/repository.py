"""The repository that devtool works in: a folder with kernels/, whose pyproject.toml declares them as a kernel package.

[project.entry-points."pyxla.kernels"]
my_namespace = "my_kernels"
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtool.errors import DevtoolError
from devtool.pyxla_files import load_file


@dataclass(frozen=True)
class Repository:
    """A repository of kernels.

    Attributes:
        root: its folder.
        namespace: of its ops in torch.ops.
        package: the name under which Python imports its folder kernels/.
        project: the table `project` of its pyproject.toml.
    """

    root: Path
    namespace: str
    package: str
    project: dict[str, Any]


def find_repository(start: Path, otherwise: Path | None = None) -> Repository:
    """The repository that contains a folder.

    Args:
        start: the folder.
        otherwise: the root to take if there is none.

    Raises:
        DevtoolError: there is none, or one inside another, or its pyproject.toml is not what devtool can work with.
    """
    roots = [folder for folder in (start, *start.parents) if _declares_kernels(folder)]
    if not roots and otherwise:
        return _read(otherwise)
    if not roots:
        raise DevtoolError(
            f"devtool: repository: expected kernels/ and a pyproject.toml that declares them in {start} or above it, "
            "got none",
            "cd into a repository of kernels, or make one: devtool init my-kernels",
        )
    if len(roots) > 1:
        message = f"devtool: repository: expected one, got {roots[0]} inside {roots[1]}"
        raise DevtoolError(message, "move one of them out of the other")
    repository = _read(roots[0])
    _require_pyxla(repository)
    return repository


def _require_pyxla(repository: Repository) -> None:
    """Raises DevtoolError unless the pyxla here is of a version that the repository's dependencies allow."""
    where, dependencies = repository.root / "pyproject.toml", repository.project.get("dependencies")
    try:
        version = importlib.metadata.version("pyxla")
    except importlib.metadata.PackageNotFoundError:  # of a checkout that is not installed
        return
    for text in (text for text in dependencies or () if re.match(r"pyxla(?![\w.-])", str(text))):
        from packaging.requirements import InvalidRequirement, Requirement

        try:
            asked = Requirement(text).specifier
        except InvalidRequirement as error:
            got = f"{text!r}: {str(error).splitlines()[0]}"
            message = f"devtool: {where}: dependencies: expected a version of pyxla as pip takes it, got {got}"
            raise DevtoolError(message, f'dependencies = ["pyxla>={version}"]') from error
        if not asked.contains(version, prereleases=True):
            message = f"devtool: pyxla: expected {text}, as {where} asks for, got {version} beside {sys.executable}"
            raise DevtoolError(message, f"pip install '{text}', or correct dependencies")


def _declares_kernels(folder: Path) -> bool:
    path = folder / "pyproject.toml"
    return path.is_file() and load_file("namespaces.py").GROUP in path.read_text(encoding="utf-8", errors="replace")


def _read(root: Path) -> Repository:
    names, where = load_file("namespaces.py"), root / "pyproject.toml"
    example = f'[project.entry-points."{names.GROUP}"]\nmy_kernels = "my_kernels"'
    try:
        project = tomllib.loads(where.read_text(encoding="utf-8"))["project"]
        entries = project["entry-points"][names.GROUP]
    except (ValueError, KeyError, TypeError) as error:
        message = f"devtool: {where}: expected a table with the entry point {names.GROUP}, got {error!r}"
        raise DevtoolError(message, example) from error
    if not isinstance(entries, dict) or len(entries) != 1:
        raise DevtoolError(f"devtool: {where}: expected one entry point {names.GROUP}, got {entries}", example)
    ((namespace, package),) = entries.items()
    if problem := names.namespace_problem(namespace):
        raise DevtoolError(f"devtool: {where}: namespace: expected {problem}, got {namespace!r}", example)
    if not isinstance(package, str) or not all(part.isidentifier() for part in package.split(".")):
        raise DevtoolError(f"devtool: {where}: package: expected a name that Python imports, got {package!r}", example)
    if not (root / "kernels").is_dir():
        message = f"devtool: repository: expected the folder kernels in {root}, got none"
        raise DevtoolError(message, f"mkdir {root / 'kernels'}, then devtool new-op my_op")
    return Repository(root, namespace, package, project)


def make_importable(repository: Repository) -> None:
    """Makes Python import the repository's package, here and in the processes that devtool starts.

    Nothing to do if it is installed, as an editable install or as in the checkout of pyxla. Otherwise build/site/ gets
    what such an install writes: a link to kernels/ and the entry point.
    """
    names, kernels = load_file("namespaces.py"), repository.root / "kernels"
    if _found_at(repository.package) == kernels.resolve() and any(
        (entry.name, entry.value) == (repository.namespace, repository.package)
        for entry in importlib.metadata.entry_points(group=names.GROUP)
    ):
        return
    site = repository.root / "build/site"
    if os.pathsep in str(site):
        message = f"devtool: repository: expected a path that PYTHONPATH can name, got a colon in {repository.root}"
        raise DevtoolError(message, "move it to a path without one, or install it: pip install -e .")
    write_site(site, repository.project, {repository.package: kernels})
    sys.path.insert(0, str(site))
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *([others] if others else [])])
    importlib.invalidate_caches()


def _found_at(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except Exception:  # a package above it may raise anything
        return None
    return Path(spec.submodule_search_locations[0]).resolve() if spec and spec.submodule_search_locations else None


def write_site(site: Path, project: dict[str, Any], packages: dict[str, Path]) -> None:
    """Writes what an editable install writes: links to packages, and the project's metadata with its entry points.

    Args:
        site: the folder, for sys.path.
        project: the table `project` of a pyproject.toml.
        packages: name -> folder.
    """
    version = project.get("version", "0")
    info = site / f"{project['name'].replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    for name, folder in packages.items():
        link = site / Path(*name.split("."))
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink() or link.readlink() != folder:
            fresh = link.with_name(f".{link.name}.{os.getpid()}")
            fresh.symlink_to(folder)
            fresh.replace(link)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in entries.items()) for group, entries in groups.items()]
    for name, text in {"METADATA": metadata, "entry_points.txt": "\n".join(lines)}.items():
        path = info / name
        # Most often nothing has changed, and the folder may be read-only.
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def others_with(repository: Repository, folder: str) -> list[tuple[str, Path]]:
    """Other installed packages of the repository's namespace that have a folder of this name: (package, folder)."""
    entries = importlib.metadata.entry_points(group=load_file("namespaces.py").GROUP, name=repository.namespace)
    names = sorted({entry.value for entry in entries} - {repository.package})
    found = [(name, place / folder) for name in names if (place := _found_at(name))]
    return [(name, path) for name, path in found if path.is_dir()]
