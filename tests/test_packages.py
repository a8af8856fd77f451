"""The packages of pyxla: no import runs in a circle, and the drawing of them is what the imports say."""

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

MAX_FILES = 15
DRAWINGS = ["CONTRIBUTING.md", "docs/concept/packages.md"]


def modules(top: str) -> dict[str, Path]:
    """Full name -> file, of a top-level package."""
    paths = [path for path in (ROOT / top).rglob("*.py") if "template" not in path.parts]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports(top: str) -> dict[str, set[str]]:
    """Module -> the modules of the same top-level package that it imports, also inside functions."""
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
    """Package -> the packages that it imports; a module beside the packages counts as one, `top` is its own."""

    def package(module: str) -> str:
        return (*module.split("."), top)[1]

    found: dict[str, set[str]] = {}
    for module, others in imports(top).items():
        found.setdefault(package(module), set()).update(map(package, others))
    return {name: others - {name} for name, others in found.items()}


def rows(found: dict[str, set[str]]) -> list[set[str]]:
    """The packages from top to bottom: each in the row above the highest that it imports."""
    height: dict[str, int] = {}
    for name in TopologicalSorter(found).static_order():
        height[name] = 1 + max((height[other] for other in found[name]), default=-1)
    return [{name for name in height if height[name] == row} for row in range(max(height.values()), -1, -1)]


@pytest.mark.parametrize(("top", "smallest"), [("pyxla", 60), ("devtool", 50)])
def test_no_import_runs_in_a_circle(top, smallest):
    found = imports(top)
    assert len(found) >= smallest and sum(map(len, found.values())) > smallest
    assert list(TopologicalSorter(found).static_order())  # CycleError names the circle


def test_no_import_between_packages_runs_in_a_circle():
    found = packages("pyxla")
    assert len(found) >= 15
    assert list(TopologicalSorter(found).static_order())


@pytest.mark.parametrize("document", DRAWINGS)
def test_drawing_is_what_the_imports_say(document):
    """A row a line: names, then what its packages do; each package imports from the rows below it alone."""
    (drawing,) = re.findall(r"<!-- packages -->\n```\n(.*?)```\n", (ROOT / document).read_text(), re.DOTALL)
    lines = [line.split("  ")[0].split() for line in drawing.splitlines() if not line.startswith(" ")]
    found = packages("pyxla")
    del found["torch_backend"]  # installed as pyxla_torch_backend: a package of its own, which imports none of these
    assert [set(line) for line in lines] == rows(found)


def test_a_folder_has_few_files():
    files = Counter(path.parent for path in (ROOT / "pyxla").rglob("*") if path.suffix not in (".pyc", ".so", ""))
    assert len(files) >= 12
    assert {str(folder): count for folder, count in files.items() if count > MAX_FILES} == {}
