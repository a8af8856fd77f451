"""docs/reference compared with the code: error messages, environment variables, names. The rest: test_site.py."""

import ast
import importlib
import os
import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.test_documents import each_current_page
from tests.layers.test_imports import files, python_files
from tests.markdown import page


def test_exit_codes_are_those_in_the_reference():
    from devtool import errors

    text = f"0 done, {errors.FAILED} failed, {errors.MISUSED} misused, {errors.INTERRUPTED} interrupted"
    assert text in page("docs/reference/cli.md").text


# What devtool defines for CMake and the compilers; the last is the beginning of a macro.
DEFINED = {"PYXLA_LIBRARY_DIR", "PYXLA_SANITIZE", "PYXLA_TUNE_"}


@pytest.mark.parametrize("path", [ROOT / "bin/devtool", *python_files("devtool")], ids=lambda path: path.name)
def test_environment_variables_of_devtool_are_documented(path):
    documented = page("docs/reference/cli.md").text
    for name in set(re.findall(r"\bPYXLA_[A-Z_]+\b", path.read_text())) - DEFINED:
        assert f"`{name}`" in documented, f"{path.name} reads {name}"


@pytest.mark.parametrize("path", python_files("pyxla"), ids=lambda path: path.name)
def test_environment_variables_of_pyxla_are_documented(path):
    documented = page("docs/reference/python.md").text
    for name in set(re.findall(r"""["']((?:PYXLA|PJRT|XLA|LD)_[A-Z_]+)["']""", path.read_text())):
        assert f"`{name}`" in documented, f"{path.name} reads {name}"


# Messages. `<...>` marks text that varies, on the page and in the code.


def canonical(message: str) -> str:
    return re.sub(r"(<[^<>]*>)+", "<>", message.partition("\n")[0])


def template(node: ast.expr, local: dict[str, ast.expr]) -> str:
    """The text of an expression, with `<>` for parts known only at run time."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value, local) for value in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left, local) + template(node.right, local)
    if isinstance(node, ast.Name) and node.id in local:
        return template(local[node.id], {})
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("mismatch", "self.that"):
        where = [] if ast.unparse(node.func) == "mismatch" else [ast.Constant("<>")]
        arguments = node.args if not where else [*where, *node.args[1:4]]
        return "{}: {}: expected {}, got {}".format(*(template(argument, local) for argument in arguments))
    return "<>"


WARNS = ("warn", "warnings.warn")


def raised_messages(path: Path) -> dict[str, int]:
    """Message -> line, for every error and warning of a file."""
    found = {}
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    for function in functions:
        assigned = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)]
        local = {n.targets[0].id: n.value for n in assigned if isinstance(n.value, ast.JoinedStr)}
        for node in ast.walk(function):
            message = None
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                message = node.exc.args[0]
            elif isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in (*WARNS, "mismatch", "self.that"):
                message = node.args[0] if name in WARNS else node
            if message is not None:
                found[canonical(template(message, local))] = node.lineno
    return found


# Messages made by callers: Check.that gets its message in parts, sync passes on the handler's.
FROM_OUTSIDE = {"<>: <>: expected <>, got <>", "<>"}


@cache
def listed_messages() -> tuple[str, ...]:
    """The messages in errors.md: the first cell of each row of its tables, and any text of the same form elsewhere."""
    document = page("docs/reference/errors.md")
    cells = [text.replace("\\|", "|") for _, text in re.findall(r"^\| (`+)(.+?)\1 \|", document.text, re.MULTILINE)]
    return (*cells, *(span for span in document.spans if ": expected " in span or ", got" in span))


@pytest.mark.parametrize("path", python_files("pyxla"), ids=lambda path: path.name)
def test_every_error_of_pyxla_is_listed(path):
    listed = {canonical(message) for message in listed_messages()}
    missing = {m: line for m, line in raised_messages(path).items() if m not in listed | FROM_OUTSIDE}
    assert not missing, f"docs/reference/errors.md lacks these of {path.name}"


def test_errors_are_read_from_the_code():
    assert len(raised_messages(ROOT / "pyxla/library/find.py")) >= 4
    messages = raised_messages(ROOT / "pyxla/op/arguments.py")
    assert "<>: <>: expected rank <>, got shape <>" in messages


@cache
def sources() -> str:
    """All text that can contain a message, with broken string literals joined."""
    of_code = {".py", ".h", ".cc", ".cu", ".txt", ".cmake", ".nix", ".sh"}
    paths = [p for p in files() if p.suffix in of_code or p == ROOT / "bin/devtool"]
    paths = [p for p in paths if p.parts[len(ROOT.parts)] in ("pyxla", "devtool", "kernels", "bin", "nix")]
    return re.sub(r'"\s*f?"', "", "\n".join(p.read_text() for p in paths))


def test_every_listed_error_is_in_the_code():
    """pyxla's messages must be equal; of other messages, each piece between the varying parts must occur."""
    of_pyxla = {m for path in python_files("pyxla") for m in raised_messages(path)}
    listed = listed_messages()
    assert len(listed) > 300
    missing = []
    for message in listed:
        if canonical(message) in of_pyxla:
            continue
        split = re.split(r"<[^<>]*>|: expected |, got:? ?|: |[()]|\.\.\.", message)
        pieces = [piece.strip() for piece in split if len(piece.strip()) > 3]
        assert pieces, message
        missing += [f"{message!r}: no {piece!r}" for piece in pieces if piece not in sources()]
    assert not missing, "docs/reference/errors.md lists what the code has not:\n" + "\n".join(missing)


def resolve(name: str) -> object:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


@each_current_page
def test_names_of_pyxla_exist(document):
    """Every `pyxla.name` and `pyxla.module.name(...)` in a page."""
    for span in document.spans:
        if match := re.fullmatch(r"(pyxla(?:\.\w+)+)(?:\(.*\))?", span):
            resolve(match[1])


def test_names_are_found_and_judged():
    assert resolve("pyxla.testing.Case.arguments").__name__ == "arguments"
    with pytest.raises(AttributeError):
        resolve("pyxla.testing.Cases")


def test_every_helper_header_is_in_the_contract():
    """kernels/README.md lists the headers of pyxla and of the families."""
    kernels = ROOT / "kernels"
    folders = [ROOT / "pyxla/include", *kernels.glob("_*/")]
    headers = {os.path.relpath(path, kernels) for folder in folders for path in folder.rglob("*.*h")}
    assert len(headers) > 25
    assert headers == set(
        re.findall(r"\]\(((?:\.\./pyxla/include|_\w+)/[\w./]+\.\w*h)\)", page("kernels/README.md").text)
    )
