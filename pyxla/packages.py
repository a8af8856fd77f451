"""Kernel packages: installed Python packages whose folders are ops, each with the namespace of its ops in torch.ops.

A package declares itself by an entry point, in its pyproject.toml::

    [project.entry-points."pyxla.kernels"]
    my_namespace = "my_kernels"
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyxla.errors import mismatch, warn
from pyxla.namespaces import GROUP, NAMESPACE, namespace_problem

__all__ = ["NAMESPACE", "KernelPackage"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class KernelPackage:
    """A package of ops.

    Attributes:
        namespace: of its ops, `torch.ops.<namespace>.<op>`; their custom calls' targets begin with it.
        name: under which Python imports it.
        folder: the folder that contains the op folders.
        distribution: under which pip knows it.
    """

    namespace: str
    name: str
    folder: Path
    distribution: str

    def module(self, folder: str, file: str | None = None) -> str:
        """The name of a module in an op's folder, by default of the file with the op."""
        return f"{self.name}.{folder}.{file or folder}"

    @property
    def is_checkout(self) -> bool:
        """Whether it is the folder `kernels/` of a repository, not an installed wheel."""
        return (self.folder.parent / "pyproject.toml").is_file()

    def folders(self) -> dict[str, str | None]:
        """Folder with a Python file of its name -> the op that it implements; None if it is an op itself."""
        names = sorted(p.parent.name for p in self.folder.glob("*/*.py") if p.stem == p.parent.name)
        return {name: implemented_op(self.folder, name) for name in names if _NAME.fullmatch(name)}


@cache
def kernel_packages() -> tuple[KernelPackage, ...]:
    """All kernel packages, pyxla's own first, then by namespace and name.

    One with a namespace that ops cannot have, or that cannot be found, is left out with a warning: the others work
    without it.
    """
    found = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        if problem := namespace_problem(entry.name):
            warn(mismatch(entry.value, "namespace", problem, f"{entry.name!r}, so its ops are left out"))
            continue
        for location in _locations(entry.value)[:1]:
            distribution = entry.dist.name if entry.dist else entry.value
            found[entry.value] = KernelPackage(entry.name, entry.value, Path(location).resolve(), distribution)
    return tuple(sorted(found.values(), key=lambda p: (p.namespace != NAMESPACE, p.namespace, p.name)))


def _locations(package: str) -> list[str]:
    """The folders of a package; none if it is gone, as after an editable install whose folder was removed."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    except Exception as error:  # of a package that contains it
        got = f"{type(error).__name__}: {error}, so its ops are left out"
        warn(mismatch(package, "package", "one that Python can find", got))
        return []
    return list(spec.submodule_search_locations or []) if spec else []


def packages_of(namespace: str) -> tuple[KernelPackage, ...]:
    """The kernel packages with this namespace."""
    return tuple(package for package in kernel_packages() if package.namespace == namespace)


def package_of_module(module: str) -> KernelPackage | None:
    """The kernel package that a module belongs to; None if it belongs to none."""
    return next((p for p in kernel_packages() if f"{module}.".startswith(f"{p.name}.")), None)


def package_of_path(folder: Path) -> KernelPackage | None:
    """The kernel package in whose folder an op's folder is; None if it is in none."""
    return next((p for p in kernel_packages() if p.folder == folder.resolve().parent), None)


def package_of_folder(folder: str, namespace: str = NAMESPACE) -> KernelPackage | None:
    """The kernel package of this namespace that has a folder of this name; None if none has it."""
    return next((p for p in packages_of(namespace) if (p.folder / folder).is_dir()), None)


def split_name(name: str) -> tuple[str, str]:
    """Namespace and op of `<namespace>::<op>`; the op alone is pyxla's own."""
    namespace, _, op = name.rpartition("::")
    return namespace or NAMESPACE, op


@cache
def op_pattern() -> re.Pattern[str]:
    """Matches the target or the torch name of an op of a kernel package; its only group is the op."""
    # The longest first: xla_gpu_more begins with xla_gpu.
    names = {NAMESPACE, *(package.namespace for package in kernel_packages())}
    namespaces = "|".join(sorted(names, key=lambda name: (-len(name), name)))
    return re.compile(rf"\b(?:{namespaces})(?:::|_)(\w+)")


def implemented_op(kernels: Path, folder: str) -> str | None:
    """The op that a folder implements, from its file `implements`; None if there is no such file."""
    try:
        return (kernels / folder / "implements").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
