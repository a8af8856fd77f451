"""The examples of the docs in a repository of one's own, which `devtool init` writes: the blocks marked `own` run."""

import re
import subprocess
import sys
import sysconfig
from itertools import takewhile
from pathlib import Path

import pytest

from devtool.release.wheel import _POLICIES
from tests.conftest import ROOT
from tests.devtool.scaffold.test_init import environment, made
from tests.docs.test_examples import apply_diff
from tests.markdown import Block, Page, matches, page, pages

PAGES = [str(p) for p in pages() if any("own" in block.words for block in p.blocks)]
# As on the pages: with CUDA code where there is nvcc, which Triton's interpreter needs.
CUDA = {"PYXLA_CUDA": "auto"}
DEVTOOL = f'devtool() {{ "{sys.executable}" -P -m devtool "$@"; }}\n'


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return made(tmp_path_factory.mktemp("own"), "my-kernels")


def output_of(repository: Path, *command: str, **changes: str) -> str:
    """The stdout and stderr of a program that succeeds in the repository, in order."""
    done = subprocess.run(
        command, cwd=repository, env=environment(**changes), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def follow(document: Page, repository: Path) -> None:
    """Does what the page shows, block by block."""
    for number, block in enumerate(document.blocks):
        place = f"{document}:{block.line}"
        if block.words == ("console", "own"):
            for command, expected in block.commands():
                got = output_of(repository, "bash", "-c", DEVTOOL + command, **CUDA)
                assert matches(expected, got), f"{place}: {command}\nexpected:\n{expected}\ngot:\n{got}"
        elif block.words == ("diff", "own"):
            apply_diff(repository, block.text, place)
        elif block.words == ("python", "own"):
            shown = document.blocks[number + 1]
            assert shown.words == ("text", "output"), f"{place}: expected the output below the script"
            got = output_of(
                repository, sys.executable, "-P", "-c", block.text, PYTHONPATH=str(repository / "build/site")
            )
            assert matches(shown.text, got), f"{place} prints:\n{got}"
        elif block.words[1:2] == ("own",):
            (repository / block.words[2]).write_text(block.text)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_what_is_shown_runs(name, repository):
    """Among the commands is `devtool test`, which compares every case with float64."""
    follow(page(name), repository)
    (op,) = set(re.findall(r"\$ devtool new-op (\w+)", page(name).text))
    folder, scripts = repository / "kernels" / op, Path(sysconfig.get_path("scripts"))
    sources = [path for path in sorted(folder.iterdir()) if path.suffix in (".h", ".cc", ".cu")]
    style = f"--style=file:{ROOT / '.clang-format'}"
    output_of(repository, str(scripts / "clang-format"), style, "--dry-run", "-Werror", *map(str, sources))
    output_of(repository, str(scripts / "ruff"), "check", "--no-cache", str(folder))
    output_of(repository, str(scripts / "ruff"), "format", "--check", "--no-cache", str(folder))


def test_pages_with_a_repository_of_ones_own_are_found():
    assert [f"docs/migration/{origin}.md" for origin in ("cpp-extension", "hf-kernels", "jax-ffi")] == PAGES


def kernel_in(block: Block, head: str) -> list[str]:
    """The lines of a function, the first of which begins with `head`."""
    lines = block.text.splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith(head)]
    return [lines[first], *takewhile(lambda line: line.startswith(" "), lines[first + 1 :])]


def test_kernel_stays_as_it_was():
    """The page says so: its first block with the kernel is the code as it was, its second what pyxla builds."""
    head = "static __global__ void SquaredRelu("
    blocks = [block for block in page("docs/migration/cpp-extension.md").blocks if head in block.text]
    before, after = (kernel_in(block, head) for block in blocks)
    assert before == after and len(before) >= 5


def test_file_with_the_handler_stays_but_for_two_lines():
    """The page says that pyxla needs two lines more than JAX: the first and the last."""
    blocks = page("docs/migration/jax-ffi.md").blocks
    (file,) = [block.text for block in blocks if block.words[2:] == ("kernels/moving_average/moving_average_ffi.cc",)]
    first, *others, last = file.splitlines()
    assert first == '#include "pyxla/ffi/op_table.h"' and last.startswith("PYXLA_OP_TABLE(")
    assert "pyxla" not in "\n".join(others).lower()


def test_publish_names_the_tags_and_the_architectures_of_the_build():
    text, recipe = page("docs/guide/publish.md").text, (ROOT / "pyxla/cmake/CMakeLists.txt").read_text()
    glibc = re.search(r"out of (.*?), together", text, re.DOTALL)[1]
    assert re.findall(r"\d\.\d+", glibc) == list(_POLICIES)
    (architectures,) = re.findall(r'^set\(PYXLA_ARCHITECTURES "(.+?)"', recipe, re.MULTILINE)
    assert re.findall(r"^\| `(\d\S+)`", text, re.MULTILINE) == architectures.split(";")
