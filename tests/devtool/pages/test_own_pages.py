"""`devtool docs` in a repository that `devtool init` wrote: the pages of its ops, its README and its docs/."""

import base64
import html
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.conftest import ROOT
from tests.devtool.scaffold.test_init import environment, made, run
from tests.docs.test_site import Parsed, plain, text_of

# One white pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEANl9ngAAAAABJRU5ErkJggg=="
GUIDE = """# Use it

### A heading that skips a level

[The op](../../kernels/scaled), `torch.ops.my_kernels.scaled`, its [file](/kernels/scaled/scaled.cu),
[README.md](../../README.md), [the same](../../README.md "with a title"), the [folder](../../examples),
[weights](../../examples/weights.bin), [the licence][1],
[a](../erste%20Größen.md), [b](<../erste Größen.md>), ![c](../erste%20Kurve.svg),
[![a plot](../plot.png)](../../CHANGELOG.md#unreleased) and ![a badge](https://github.com/x/y/badge.svg).

[1]: ../../LICENSE

```mermaid
a --> b [not a link](nowhere.md)
```
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """A repository with what others have: a guide, a picture, files that are no text, an implementation."""
    root = made(tmp_path_factory.mktemp("pages"), "my-kernels")
    written = run(root, "new-op", "scaled", "--route", "triton")
    assert written.returncode == 0, written.stderr
    (root / "docs/guide").mkdir(parents=True)
    (root / "docs/guide/use.md").write_text(GUIDE)
    (root / "docs/erste Größen.md").write_text("# Größen\n\nKeine; `{toctree}` is not one.\n")
    (root / "docs/erste Kurve.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 7 9"></svg>\n')
    (root / "docs/plot.png").write_bytes(base64.b64decode(PNG))
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\nAll of it.\n")
    (root / "LICENSE").write_text("Do as you like.\n")
    (root / "examples").mkdir()
    (root / "examples/weights.bin").write_bytes(bytes(range(256)))
    return root


@pytest.fixture(scope="module")
def pages(repository) -> Path:
    """The pages, made in place of earlier ones, from a folder below."""
    folder = repository / "build/docs"
    folder.mkdir(parents=True)
    (folder / ".buildinfo").touch()
    (folder / "earlier.html").touch()
    done = run(repository / "kernels/scaled", "docs")
    assert (done.returncode, done.stdout) == (0, f"{folder / 'index.html'}\n"), done.stderr
    # GitHub Pages needs the second one; .doctrees is Sphinx's own.
    assert not (folder / "earlier.html").exists()
    assert {path.name for path in folder.glob(".*")} == {".buildinfo", ".nojekyll"}
    return folder


def test_first_page_is_the_readme_and_leads_to_all_others(pages, repository):
    text = text_of(pages / "index.html")
    assert plain("each folder of kernels/ is one op") in text and plain("my-kernels 0.1.0") in text
    links = Parsed(pages / "index.html").links
    assert {"ops/index.html", "guide/use.html", "changelog.html", "source/index.html"} <= set(links)


def test_every_link_leads_somewhere(pages):
    found = sorted(pages.rglob("*.html"))
    assert len(found) >= 15
    for page in found:
        for link in [*Parsed(page).links, *Parsed(page).loaded]:
            address, _, anchor = link.partition("#")
            if not link.startswith("https:"):
                name = unquote(html.unescape(address).partition("?")[0])
                target = (page.parent / name).resolve() if address else page
                assert target.is_file(), f"{page} links to {link}"
                assert not anchor or anchor in Parsed(target).ids, f"{page} links to {link}"


def test_links_of_a_guide_lead_to_pages_of_the_site(pages):
    links = Parsed(pages / "guide/use.html").links
    files = ("source/kernels/scaled/scaled.cu", "source/examples", "source/examples/weights.bin", "source/LICENSE")
    own = ("ops/scaled", "index", "changelog", *files)
    assert {f"../{name}.html" for name in own} <= {link.partition("#")[0] for link in links}
    assert "../ops/scaled.html#torch.ops.my_kernels.scaled" in links
    assert (pages / "_images/plot.png").read_bytes() == base64.b64decode(PNG)
    page = (pages / "guide/use.html").read_text()
    written = re.findall(r'href="(\.\./[^"]*)"><span class="std std-doc">[ab]<', page)
    assert written == ["../erste%20Gr%C3%B6%C3%9Fen.html"] * 2 and 'viewBox="0 0 7 9"' in page
    assert "weights.bin" in text_of(pages / "source/examples.html")
    assert "nowhere" in text_of(pages / "guide/use.html")  # a block of code, as it is


def test_page_of_an_op_has_what_its_files_say(pages):
    text = text_of(pages / "ops/scaled.html")
    for said in (
        "torch.ops.my_kernels.scaled(x, scale=1.0)",
        "Schema: (Tensor x, float scale=1.0) -> Tensor",
        "Custom call: my_kernels_scaled",
        "x \N{EN DASH} any shape; float32, bfloat16 or float16.",
        "Raises: ArgumentError \N{EN DASH} a dtype other than those above",
        "f32-3x5",
        "scaled_ffi.cc",
        "triton: torch.ops.my_kernels.scaled.triton(...)",
    ):
        assert plain(said) in text, said
    assert "torch.ops.my_kernels.scaled" in Parsed(pages / "ops/scaled.html").ids
    assert "what it is, in one line" in (pages / "ops/index.html").read_text()


def test_page_of_an_implementation_says_how_it_is_called(pages):
    text = text_of(pages / "ops/scaled_triton.html")
    for said in (
        "PYXLA_IMPLEMENTATION=my_kernels::scaled=triton",
        "pyxla.use_implementation('my_kernels::scaled', 'triton')",
        "my_kernels_scaled_triton",
    ):
        assert plain(said) in text, said


@pytest.fixture
def copy(repository, tmp_path) -> Path:
    """A copy of the repository to make mistakes in."""
    return shutil.copytree(repository, tmp_path / "my-kernels", ignore=shutil.ignore_patterns("build", "__pycache__"))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_all_mistakes_are_named_and_nothing_is_written(copy):
    (copy / "docs/page.md").write_text("# Page\n\n[a](nowhere.md), [b](../../elsewhere.md)\n\n[c]: gone.md\n")
    (copy / "docs/html.md").write_text('# HTML\n\n<img alt="a plot" src="plot.png">\n')
    (copy / "docs/anchor.md").write_text("# Anchor\n\n[x](guide/use.md#no-such-heading)\n")
    with (copy / "README.md").open("a") as readme:
        readme.write("\n[x](CHANGELOG.md#no-such-heading)\n")
    replace(copy / "kernels/scaled/scaled.py", "    Returns:\n", "    A ``literal without an end.\n\n    Returns:\n")
    for op in ("broken", "silent"):
        assert run(copy, "new-op", op, "(Tensor x) -> Tensor").returncode == 0
    replace(copy / "kernels/broken/broken.py", "import torch\n", "import torch\nimport no_such_module\n")
    silent = copy / "kernels/silent/silent.py"
    silent.write_text(re.sub(r'\n    """.*?"""\n', "\n    assert True\n", silent.read_text(), count=1, flags=re.DOTALL))
    done = run(copy, "docs")
    assert (done.returncode, done.stdout) == (1, "") and not (copy / "build/docs").exists(), done.stderr
    expected = "link: expected a page, a file or a folder of the repository, got"
    for said in (
        *(f"WARNING: docs/page.md: {expected} {link}\n" for link in ("nowhere.md", "../../elsewhere.md", "gone.md")),
        "WARNING: docs/html.md: link: expected Markdown for a file of the repository, got a tag of HTML with plot.png",
        "WARNING: kernels/broken: broken.py: expected a file that Python imports, got ModuleNotFoundError: No module",
        "WARNING: kernels/silent: silent: expected a docstring, which the page shows, got none\n",
        "Inline literal start-string without end-string",
    ):
        assert said in done.stderr, f"{said}\n{done.stderr}"
    assert re.search(r"^anchor\.md:3: WARNING: .*'no-such-heading'", done.stderr, re.MULTILINE), done.stderr
    assert re.search(r"^README\.md:\d+: WARNING: .*'no-such-heading'", done.stderr, re.MULTILINE), done.stderr
    assert done.stderr.endswith("docs: Sphinx failed (exit status 1, see above)\n\nhint: fix what Sphinx names, then "
                                "devtool docs\n")  # fmt: skip


def test_index_and_configuration_of_ones_own(copy):
    """docs/index.md takes the place of README.md, includes it, and lists the pages; docs/conf.py adds to devtool's."""
    (copy / "docs/index.md").write_text(
        "# Mine\n\n```{include} ../README.md\n:start-after: \"# my-kernels\"\n```\n\n"
        "```{toctree}\nops/index\nguide/use\nerste Größen\nchangelog\nsource/index\n```\n"
    )  # fmt: skip
    (copy / "docs/conf.py").write_text('from devtool.pages.conf import *\n\nhtml_title = "All mine"\n')
    done = run(copy, "docs", "--output", "site")
    assert done.returncode == 0, done.stderr
    text = text_of(copy / "site/index.html")
    assert "Allmine" in text and plain("each folder of kernels/ is one op") in text
    assert "../index.html" in Parsed(copy / "site/guide/use.html").links


def refused(folder: Path) -> str:
    done = run(folder, "docs")
    assert (done.returncode, done.stdout) == (1, "") and not (folder / "build/docs").exists()
    return done.stderr


def test_configuration_without_devtools_is_refused(copy):
    (copy / "docs/conf.py").write_text('project = "mine"\n')
    message = f"docs: docs/conf.py: expected one that builds on devtool's, got another in {copy}"
    assert refused(copy) == f"{message}\n\nhint: begin it with: from devtool.pages.conf import *\n"


def test_repository_without_a_first_page_is_refused(copy):
    (copy / "README.md").unlink()
    message = f"docs: README.md: expected it, as the first page, or docs/index.md in {copy}, got neither"
    assert refused(copy) == f"{message}\n\nhint: write one\n"


@pytest.mark.parametrize(
    ("name", "got"), [("changelog", "the page of CHANGELOG.md"), ("ops/new", "a page that devtool writes")]
)
def test_document_in_the_place_of_another_page_is_refused(copy, name, got):
    (copy / f"docs/{name}.md").parent.mkdir(exist_ok=True)
    (copy / f"docs/{name}.md").write_text("# Mine\n")
    message = f"docs/{name}.md: page: expected one of its own, got {name}.md, {got}; rename the file"
    assert message in refused(copy)


def test_without_sphinx_the_extra_is_named(copy, tmp_path):
    """It is run by a Python that has what devtool itself needs."""
    site = tmp_path / "site"
    site.mkdir()
    for package in (ROOT / "devtool", ROOT / "pyxla", Path(sysconfig.get_path("purelib"), "click")):
        (site / package.name).symlink_to(package)
    command = [sys._base_executable, "-S", "-P", "-m", "devtool", "docs"]
    done = subprocess.run(command, cwd=copy, env=environment(site), capture_output=True, text=True, check=False)
    message = f"docs: sphinx: expected it beside {command[0]}, got none"
    hint = 'hint: pip install "pyxla[docs]"; in a checkout of pyxla run bin/devtool'
    assert (done.returncode, done.stderr) == (1, f"{message}\n\n{hint}\n"), os.fspath(site)
