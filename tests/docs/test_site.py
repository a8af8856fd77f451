"""The pages of `devtool docs` are complete and have everything that the code offers."""

import html
import importlib
import inspect
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from devtool.cli import cli
from tests.conftest import ROOT
from tests.devtool_tree import Tree
from tests.docs.test_documents import HOSTS
from tests.layers.test_imports import CPP, IMPLEMENTATIONS, OPS, includes, name_of, python_files


class Parsed(HTMLParser):
    """A page's ids and links, and the files that a browser would load."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.add(attributes.get("id"))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag in ("script", "img", "iframe", "source") and attributes.get("src"):
            self.loaded.append(attributes["src"])
        if tag == "link" and attributes.get("rel") not in ("index", "search", "next", "prev", "genindex"):
            self.loaded.append(attributes["href"])


@cache
def parsed(path: Path) -> Parsed:
    return Parsed(path)


def text_of(path: Path) -> str:
    """The visible text, on one line."""
    return plain(
        html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"<(script|style)\b.*?</\1>", "", path.read_text(), flags=re.S)))
    )


def plain(text: str) -> str:
    """Only the words, because a page shows no reStructuredText marks and breaks lines elsewhere."""
    return re.sub(r"[`*\\\s]+", "", text)


def pages_of(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


@pytest.mark.slow
def test_there_are_pages(site):
    names = {path.relative_to(site).as_posix() for path in pages_of(site)}
    assert {
        "index.html",
        "guide/first-op.html",
        "reference/errors.html",
        "changelog.html",
        "contributing.html",
    } <= names
    assert len(names) > 80


@pytest.mark.slow
def test_every_page_of_markdown_is_there(site):
    written = {p.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    missing = {name for name in written if not (site / name).is_file()}
    assert missing == set()


@pytest.mark.slow
def test_links_and_anchors_lead_somewhere(site):
    broken = []
    for page in pages_of(site):
        for link in parsed(page).links:
            address, _, anchor = link.partition("#")
            if re.match(r"\w+:", link):
                host = re.fullmatch(r"https?://([^/]+).*|mailto:.*", link)
                if host is None or host[1] not in HOSTS:
                    broken.append((page.relative_to(site), link))
                continue
            target = (page.parent / html.unescape(address)).resolve() if address else page
            if not target.is_file() or (anchor and anchor not in parsed(target).ids):
                broken.append((page.relative_to(site), link))
    assert broken == []


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    for page in pages_of(site):
        for address in parsed(page).loaded:
            assert (page.parent / address.partition("?")[0]).resolve().is_file(), f"{page} loads {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", sheet.read_text()), sheet


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_and_option_is_there(site, name):
    command, text = cli.commands[name], text_of(site / f"reference/cli/{name}.html")
    for line in command.help.replace("\b", "").splitlines():
        assert plain(line) in text, f"the page of {name} lacks {line!r}"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert plain(parameter.help) in text, f"the page of {name} lacks the help of {parameter.name}"
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert (
                    f"cmdoption-devtool-{name}-{option.lstrip('-')}" in parsed(site / f"reference/cli/{name}.html").ids
                )
        else:
            assert plain(parameter.make_metavar(click.Context(command))) in text
    assert f"cli/{name}.html" in parsed(site / "reference/cli.html").links


def public_modules() -> list[str]:
    """The modules of pyxla with an `__all__`, read from the sources."""
    found = [path for path in python_files("pyxla") if re.search(r"^__all__ = ", path.read_text(), re.MULTILINE)]
    return [name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", public_modules())
def test_every_public_name_is_there(site, name):
    module, path = importlib.import_module(name), site / f"reference/python/{name}.html"
    ids, text = parsed(path).ids, text_of(path)
    for member in module.__all__:
        value, full = getattr(module, member), f"{name}.{member}"
        assert full in ids, f"{path.name} lacks {full}"
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        assert plain(inspect.getdoc(value).partition("\n")[0]) in text, f"{path.name} lacks the docstring of {full}"
        if inspect.isfunction(value):
            assert all(parameter in text for parameter in inspect.signature(value).parameters)
        else:
            for method, function in vars(value).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    assert f"{full}.{method}" in ids, f"{path.name} lacks {full}.{method}"
    assert f"python/{name}.html" in parsed(site / "reference/python.html").links


@pytest.mark.slow
def test_names_in_a_text_lead_to_their_reference(site):
    links = parsed(site / "guide/read-the-hlo.html").links
    assert "../reference/python/pyxla.html#pyxla.inspect" in links
    assert "../reference/cli/hlo.html" in parsed(site / "guide/in-place.html").links


@pytest.mark.slow
def test_docstrings_are_read_as_they_are_written(site):
    """Two names on one line are two entries; two hyphens become a dash, except those of an option."""
    text = text_of(site / "reference/python/pyxla.testing.call_frame.html")
    assert text.count("\N{EN DASH}shapeanddtypeofthedense,row-majorarraythere.") == 2
    assert "--device" in text_of(site / "reference/cli/bench.html")


@pytest.mark.slow
def test_the_first_page_begins_as_the_readme(site):
    text = text_of(site / "index.html")
    blocks = re.split(r"\n\n+", (ROOT / "README.md").read_text())
    prose = [plain(block) for block in blocks if re.match(r"[A-Z]", block) and "](" not in block]
    assert len(prose) >= 3 and all(block in text for block in prose)


KERNELS, INCLUDE = ROOT / "kernels", ROOT / "pyxla/include"
SHARED = sorted(
    path for folder in (INCLUDE, *KERNELS.glob("_*/")) for path in folder.rglob("*") if path.suffix in (".h", ".cuh")
)
_DEFINED = re.compile(
    r"^#define (PYXLA_\w+)|^(?:struct|enum class|class) (?:alignas\(.*\) )?(\w+) \{"
    r"|^(?:inline )?constexpr [\w ]+ (k\w+)|^[A-Za-z_][\w:<>,&* ]*?[ *&](?!__)(\w+)\(",
    re.MULTILINE,
)


def names_of(header: Path) -> set[str]:
    """The macros that a header of pyxla or of a family defines, and the names that begin a line."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    return {next(filter(None, found)) for found in _DEFINED.findall(text)}


@cache
def used_names(header: Path) -> set[str]:
    """The words of the C++ files that include the header: of op folders, and of the scaffold."""
    name = header.relative_to(INCLUDE if header.is_relative_to(INCLUDE) else KERNELS).as_posix()
    users = [path for path in CPP if path not in SHARED and name in includes(path)]
    return set(re.findall(r"\w+", " ".join(path.read_text() for path in users)))


@pytest.mark.slow
@pytest.mark.parametrize("header", SHARED, ids=lambda path: path.name)
def test_every_cpp_name_that_a_kernel_uses_is_there(site, header):
    text = text_of(site / f"reference/cpp/{header.name}.html")
    missing = {name for name in names_of(header) & used_names(header) if name not in text}
    assert missing == set(), f"the comments of {header.name} lack these"


def test_cpp_names_are_read_from_the_headers():
    names = {name for header in SHARED for name in names_of(header) & used_names(header)}
    assert {
        "CheckDtype",
        "PYXLA_OP_TABLE",
        "ParallelFor",
        "FloatType",
        "DispatchCuda",
        "Vector",
        "kVectorBytes",
    } <= names
    assert len(names) > 25


@pytest.mark.slow
@pytest.mark.parametrize("folder", OPS)
def test_every_op_is_there(site, folder):
    from pyxla.torch_ops.custom_op import _ops

    path = site / f"ops/{folder}.html"
    ids, text = parsed(path).ids, text_of(path)
    own = [op for op in _ops.values() if op.library == folder]
    assert own
    for op in own:
        assert f"torch.ops.xla_gpu.{op.name}" in ids
        assert plain(op.schema.text) in text and plain(op.reference.__doc__.partition("\n")[0]) in text
    cases = importlib.import_module(f"pyxla_kernels.{folder}.cases")
    for entry in (*cases.CASES, *cases.BENCHES):
        assert plain(entry.name) in text and plain(entry.why) in text
    for bad in cases.BAD_INPUTS:
        assert plain(bad.message) in text
    check_files_and_notes(folder, path, text)


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted(IMPLEMENTATIONS))
def test_every_implementation_is_there(site, folder):
    """Its page says how it is called and links to the op's page, which has the rest."""
    op = IMPLEMENTATIONS[folder]
    name, path = folder.removeprefix(f"{op}_"), site / f"ops/{folder}.html"
    text = text_of(path)
    for called in (f"torch.ops.xla_gpu.{op}.{name}(", f"{op}={name}", f"use_implementation('{op}', '{name}')"):
        assert plain(called) in text
    assert f"xla_gpu_{folder}" in text and f'href="{op}.html"' in path.read_text()
    check_files_and_notes(folder, path, text)


def check_files_and_notes(folder: str, path: Path, text: str) -> None:
    """A page has the names of the folder's sources, and the first paragraph of its notes."""
    for source in (ROOT / "kernels" / folder).glob("*.[ch]*"):
        assert plain(source.name) in text
    notes = ROOT / "kernels" / folder / "NOTES.md"
    first = notes.read_text().split("\n\n")[1] if notes.is_file() else ""
    for piece in re.split(r"\|[-|\s]*", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first)):
        assert plain(piece) in text, f"{path.name} lacks of NOTES.md: {piece}"


def test_a_mistake_in_a_page_is_an_error_and_nothing_is_written(tmp_path):
    tree = Tree(tmp_path)
    (tmp_path / "README.md").write_text("# Title\n\n[text](nowhere.md)\n")
    done = tree.run("docs", "--output", str(tmp_path / "pages"))
    assert done.returncode == 1 and done.stdout == ""
    assert (
        "WARNING: README.md: link: expected a page, a file or a folder of the repository, got nowhere.md" in done.stderr
    )
    assert "docs: Sphinx failed (exit status 1, see above)\n\nhint: " in done.stderr
    assert not (tmp_path / "pages").exists()


def test_other_files_are_not_replaced(tmp_path):
    tree = Tree(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    done = tree.run("docs", "--output", str(tmp_path / "mine"))
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"docs: --output: expected a new folder or one with earlier pages, got {tmp_path}/mine\n\nhint: "
    )
    assert (tmp_path / "mine/thesis.txt").read_text() == "x"
