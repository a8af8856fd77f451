"""The packages of pyxla and of devtool: there are no import cycles, and their drawings agree with the imports."""

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

MAX_FILES = 15
DRAWINGS = ["CONTRIBUTING.md", "docs/concept/packages.md"]
# Top-level package -> the fewest modules and packages that it has.
SMALLEST = {"pyxla": (60, 15), "devtool": (50, 15)}
# Run by others and import nothing else: installed as pyxla_torch_backend, or run before there is a .venv.
PARTS = {"setup_children", "setup_errors", "setup_uv"}
APART = {"torch_backend", "setup_env", *PARTS}


def modules(top: str) -> dict[str, Path]:
    """Full name -> file, of a top-level package."""
    # Not modules: files to fill in, and what the CMake recipe runs.
    paths = [path for path in (ROOT / top).rglob("*.py") if not {"template", "cmake"} & {*path.parts}]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports(top: str) -> dict[str, set[str]]:
    """Module -> the modules of the same top-level package that it imports, including inside functions."""
    known = modules(top)
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & set(known)
            elif isinstance(node, ast.ImportFrom):
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= (full & set(known)) or ({node.module} & set(known))
    return {name: others - {name} for name, others in found.items()}


def packages(top: str) -> dict[str, set[str]]:
    """Package -> the packages that it imports; a top-level module counts as a package, and so does `top` itself."""

    def package(module: str) -> str:
        return (*module.split("."), top)[1]

    found: dict[str, set[str]] = {}
    for module, others in imports(top).items():
        found.setdefault(package(module), set()).update(map(package, others))
    return {name: others - {name} for name, others in found.items()}


def rows(found: dict[str, set[str]]) -> list[set[str]]:
    """The packages from top to bottom: each is one row above the highest package that it imports."""
    height: dict[str, int] = {}
    for name in TopologicalSorter(found).static_order():
        height[name] = 1 + max((height[other] for other in found[name]), default=-1)
    return [{name for name in height if height[name] == row} for row in range(max(height.values()), -1, -1)]


def circles(found: dict[str, set[str]]) -> set[frozenset[str]]:
    """The groups whose members all import each other, directly or through others."""
    reached = {name: set(others) for name, others in found.items()}
    for middle in reached:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    return {frozenset(other for other in reached[name] if name in reached[other]) for name in reached} - {frozenset()}


def test_circles_are_found():
    found = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}
    assert circles(found) == {frozenset("abc"), frozenset("ef")}


@pytest.mark.parametrize("top", SMALLEST)
def test_no_import_runs_in_a_circle(top):
    """There is no cycle of modules and none of packages."""
    for found, smallest in zip((imports(top), packages(top)), SMALLEST[top], strict=True):
        assert len(found) >= smallest and sum(map(len, found.values())) > smallest
        assert circles(found) == set()


@pytest.mark.parametrize("top", SMALLEST)
@pytest.mark.parametrize("document", DRAWINGS)
def test_drawing_is_what_the_imports_say(document, top):
    """One row per line: names, then what the packages do; each package imports only from the rows below."""
    drawn = rf"<!-- packages of {top} -->\n```\n(.*?)```\n"
    (drawing,) = re.findall(drawn, (ROOT / document).read_text(), re.DOTALL)
    lines = [line.split("  ")[0].split() for line in drawing.splitlines() if not line.startswith(" ")]
    found = packages(top)
    for name in APART & set(found):
        assert found.pop(name) <= PARTS, "the parts of setup_env, which may import them"
    # `python -m devtool` runs cli, and the package itself is empty; `pyxla` is what `import pyxla` loads.
    for name in {"devtool", "__main__"} & set(found):
        del found[name]
    assert [set(line) for line in lines] == rows(found)


@pytest.mark.parametrize("top", [*SMALLEST, "kernels"])
def test_a_folder_has_few_files(top):
    """An __init__.py, which says what its folder is for, does not count."""
    paths = [path for path in (ROOT / top).rglob("*") if path.suffix not in (".pyc", ".so", "")]
    files = Counter(path.parent for path in paths if path.name != "__init__.py")
    assert len(files) >= 12
    assert {str(folder): count for folder, count in files.items() if count > MAX_FILES} == {}
