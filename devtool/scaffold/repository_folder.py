"""Writes a repository for kernels from the templates, all of it or nothing."""

from __future__ import annotations

import importlib.metadata
import keyword
import re
import shutil
import sys
import tempfile
from pathlib import Path

from devtool.errors import MISUSED, DevtoolError
from devtool.pyxla_files import load_file
from devtool.repository import Repository
from devtool.scaffold.op_folder import rendered, templates_in
from devtool.scaffold.schema import DEFAULT_SCHEMA, parse_schema
from devtool.scaffold.stub import Op

_TEMPLATES = Path(__file__).parent / "repository"
_OP = "scaled"
# Names that Python, pyxla or a repository itself uses.
_TAKEN = {"torch", "torch_xla", "pyxla", "pyxla_kernels", "pyxla_torch_backend", "devtool", "kernels", "tests", "build"}
_TAKEN |= {"triton", "jax", "jaxlib", "numpy", "cupy", "pytest", "site"}


def write_repository(name: str, namespace: str | None) -> tuple[Path, list[Path]]:
    """Writes the folder `name` in the working directory; returns its path and its files, relative to it.

    Args:
        name: of the project: lower-case letters, digits, - and _.
        namespace: of its ops; None: the name with _ for -.

    Raises:
        DevtoolError: a name or a namespace that cannot be one, or a folder that holds something.
    """
    package = _check_name(name)
    namespace = namespace or package
    if problem := load_file("namespaces.py").namespace_problem(namespace):
        hint = f"devtool init {name} --namespace my_kernels"
        raise DevtoolError(f"init: --namespace: expected {problem}, got {namespace!r}", hint, MISUSED)
    target = Path.cwd() / name
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise DevtoolError(
            f"init: NAME: expected a folder that does not exist or is empty, got {target}", "take another name", MISUSED
        )
    # The dot hides it; the folder inside has the permissions that the user's umask leaves.
    with tempfile.TemporaryDirectory(prefix=f".init-{name}-", dir=Path.cwd(), ignore_cleanup_errors=True) as hidden:
        folder = Path(hidden, name)
        folder.mkdir()
        _write(folder, name, Repository(folder, namespace, package, {}))
        folder.rename(target)
    return target, sorted(path.relative_to(target) for path in target.rglob("*") if path.is_file())


def _check_name(name: str) -> str:
    """The name of the package."""
    hint = "devtool init my-kernels"
    if not re.fullmatch(r"[a-z]([a-z0-9_-]*[a-z0-9])?", name) or len(name) > 64:
        message = f"init: NAME: expected lower-case letters, digits, - and _, a letter first, got {name!r}"
        raise DevtoolError(message, hint, MISUSED)
    package = name.replace("-", "_")
    if package in _TAKEN or keyword.iskeyword(package) or package in sys.stdlib_module_names:
        message = f"init: NAME: expected a name that Python and pyxla do not use, got {name!r}"
        raise DevtoolError(message, hint, MISUSED)
    return package


def _write(folder: Path, name: str, repository: Repository) -> None:
    environment = templates_in(_TEMPLATES)
    values = {"name": name, "repository": repository, "version": importlib.metadata.version("pyxla")}
    for template in sorted(_TEMPLATES.rglob("*.jinja")):
        source = template.relative_to(_TEMPLATES)
        path = folder / source.with_suffix("")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(source.as_posix()).render(values))
    (folder / "kernels").mkdir()
    (folder / "kernels/__init__.py").write_text(
        '"""The op folders."""\n\nimport pyxla  # noqa: F401 - first, as it imports the ops\n'
    )
    with rendered(Op(_OP, parse_schema(DEFAULT_SCHEMA)), folder / "kernels", repository) as op:
        shutil.move(op, folder / "kernels" / _OP)
