"""Writes the folder of a new op from the templates, all of it or nothing."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from devtool import project
from devtool.errors import MISUSED, DevtoolError
from devtool.processes import locate
from devtool.repository import Repository, others_with
from devtool.scaffold.names import op_problem
from devtool.scaffold.schema import Schema

_TEMPLATES = Path(__file__).parent / "template"
# Route -> the folders whose templates make up the op's folder.
_FOLDERS = {
    "cuda": ("op", "cuda"),
    "triton": ("op", "triton"),
    "wrap": ("op", "cuda", "wrap"),
    "copied implementation": ("implementation",),
    "cuda implementation": ("implementation", "implementation_cuda"),
    "triton implementation": ("implementation", "implementation_triton"),
}


class Folder(Protocol):
    """A new op (stub.Op) or an implementation of one; the templates of its route, and its own, get it as `op`."""

    name: str
    route: str
    templates: tuple[str, ...]
    copies: dict[Path, str]


# Types that a Triton kernel does not take.
_NO_NUMBERS = ("str", "int[]", "float[]")


def check_name(name: str) -> None:
    """Raises DevtoolError unless a new op can have this name."""
    if problem := op_problem(name):
        raise DevtoolError(f"new-op: NAME: expected {problem}, got {name!r}", "devtool new-op my_op", MISUSED)
    folder = project.kernels() / name
    if folder.exists() or folder.is_symlink():
        hint = f"take another name, or remove the folder: rm -r {folder}"
        if (folder / f"{name}_ffi.cc").is_file():
            hint = f"take another name; devtool new-op {name} --route triton adds an implementation of it"
        raise DevtoolError(f"new-op: NAME: expected a name that is free, got {name!r}: {folder} exists", hint, MISUSED)
    for package, other in others_with(project.repository(), name):
        got = f"{name!r}, which {package} has in the same namespace ({other})"
        hint = f"take another name, or uninstall {package}"
        raise DevtoolError(f"new-op: NAME: expected a name that is free, got {got}", hint, MISUSED)


def check_route(route: str, schema: Schema) -> None:
    """Raises DevtoolError if an argument is of a type that the route's kernel cannot take."""
    for argument in schema.arguments:
        if route == "triton" and argument.kind in _NO_NUMBERS:
            got = f"{argument.kind} {argument.name}"
            message = f"new-op: schema: expected tensors and numbers, which a Triton kernel takes, got {got}"
            raise DevtoolError(message, "pass it as numbers, or take --route cuda", MISUSED)


def write_op(op: Folder) -> Path:
    """Writes kernels/<op>/ and returns it. If anything fails, nothing is left behind.

    Raises:
        DevtoolError: another process has made the folder meanwhile.
        OSError: the folder cannot be written.
    """
    target = project.kernels() / op.name
    with rendered(op, project.kernels()) as folder:
        try:
            folder.rename(target)
        except OSError as error:
            if not target.exists():
                raise
            check_name(op.name)
            raise AssertionError("an existing folder passed the check") from error
    return target


def templates_in(folder: Path) -> Environment:
    """The templates in a folder; a name that a template does not know is an error."""
    return Environment(
        loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip


@contextmanager
def rendered(op: Folder, beside: Path | None, repository: Repository | None = None) -> Iterator[Path]:
    """A folder with the files of a new op or implementation, removed at the end unless it was renamed.

    Args:
        beside: where to make it; None is the system's folder for temporary files.
        repository: the op's; None is the one that devtool works in.
    """
    repository = repository or project.repository()
    # The dot hides it from code that lists the ops. The folder inside has the permissions that the user's umask leaves.
    prefix = f".new-{op.name}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=beside, ignore_cleanup_errors=True) as hidden:
        folder = Path(hidden, op.name)
        folder.mkdir()
        environment = templates_in(_TEMPLATES)
        # A later folder's template takes the place of an earlier one of its name.
        for template in (
            path for part in (*_FOLDERS[op.route], *op.templates) for path in (_TEMPLATES / part).glob("*.jinja")
        ):
            name = template.name.removesuffix(".jinja").replace("NAME", op.name)
            source = template.relative_to(_TEMPLATES).as_posix()
            (folder / name).write_text(environment.get_template(source).render(op=op, repository=repository))
        for path, name in op.copies.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)
        _format(folder, repository.root)
        yield folder


def _format(folder: Path, root: Path) -> None:
    """Formats the files by the repository's settings. Without the formatters they stay as in the templates."""
    settings = ["--quiet", "--no-cache", "--config", str(root / "pyproject.toml"), str(folder)]
    if ruff := locate("ruff"):
        # Sorts the imports: the user's code may bring some.
        subprocess.run([ruff, "check", "--fix", "--exit-zero", "--select=I", *settings], stdin=subprocess.DEVNULL)
    cpp = [str(path) for path in folder.iterdir() if path.suffix in (".h", ".cc", ".cu")]
    commands = [
        ["clang-format", f"--style=file:{root / '.clang-format'}", "-i", *cpp],
        ["ruff", "format", *settings],
    ]
    running = [
        subprocess.Popen([tool, *arguments], stdin=subprocess.DEVNULL)
        for name, *arguments in commands
        if (tool := _clang_format() if name == "clang-format" else locate(name))
    ]
    for process in running:
        process.wait()


def _clang_format() -> str | None:
    # The wheel's command is a Python script that starts the program, which wastes a tenth of a second.
    package = importlib.util.find_spec("clang_format")
    program = Path(package.origin).parent / "data/bin/clang-format" if package and package.origin else None
    return str(program) if program and program.is_file() else locate("clang-format")
