"""The docs are true: names in them exist, examples run, and docstrings fit their functions."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from devtool.cli import cli
from pyxla.vllm.releases import RELEASES
from tests.conftest import ROOT
from tests.layers.test_imports import OPS, files, name_of, python_files
from tests.markdown import Page, page, pages

REQUIRED = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "kernels/README.md", "docs/guide/first-op.md"),
    *("docs/concept/how-a-call-travels.md", "docs/measurements.md"),
    *("docs/reference/cli.md", "docs/reference/errors.md", "docs/reference/python.md"),
]
# Ops that the docs tell a reader to create.
EXAMPLES = {name for p in pages() for name in re.findall(r"new-op (?:--\S+ )?(\w+)", p.text)} - set(OPS) | {
    "script",
    "rms_norm_fast",
}
each_page = pytest.mark.parametrize("document", pages(), ids=str)
# The diaries in docs/lab keep the names of their time.
CURRENT = [page for page in pages() if not page.path.is_relative_to(ROOT / "docs/lab")]
each_current_page = pytest.mark.parametrize("document", CURRENT, ids=str)


@pytest.mark.parametrize("name", [*REQUIRED, "LICENSE"])
def test_there_is(name):
    assert (ROOT / name).read_text().strip()


@each_page
def test_links_lead_somewhere(document):
    for link in document.links:
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.path.parent / name).resolve() if name else document.path
        assert target.exists(), f"{document} links to {link}"
        assert not anchor or anchor in Page(target).anchors(), f"{document} links to {link}, which has no such heading"


FOLDERS = r"pyxla|kernels|devtool|tests|docs|benchmarks|requirements|bin|\.ci"
PATH = re.compile(rf"(?<![\w/.<-])(?:{FOLDERS})/[\w.*/-]*\w")
FILE = re.compile(r"[\w-]+\.(?:py|h|cuh|cc|cu|md|toml|txt|in|cmake)")


def is_example(name: str) -> bool:
    stems = {re.sub(r"^test_|_ffi$|_host$|_launch$", "", part.partition(".")[0]) for part in Path(name).parts}
    return bool(stems & (EXAMPLES | {"NAME"}))


@each_current_page
def test_paths_exist(document):
    """In code spans and in blocks, from the root, from the page or from kernels/."""
    bases = (ROOT, document.path.parent, ROOT / "kernels", ROOT / "pyxla/include")
    for name in PATH.findall(document.text):
        if not is_example(name):
            assert any(any(base.glob(name)) for base in bases), f"{document} names {name}"


@each_current_page
def test_file_names_exist(document):
    known = {path.name for path in files()}
    for span in document.spans:
        if FILE.fullmatch(span) and not is_example(span):
            assert any(name.endswith(span) for name in known), f"{document} names {span}"


def shown_commands(document) -> list[tuple[str, bool]]:
    """(devtool's command line, whether it is complete), from blocks and from code spans, which may show only a part."""
    lines = [
        line.removeprefix("$ ") for block in document.blocks for line in block.text.replace("\\\n", " ").splitlines()
    ]
    found = [(line, True) for line in lines if re.match(r"(bin/)?devtool( |$)", line)]
    return found + [(span, False) for span in document.spans if re.match(r"(bin/)?devtool( |$)", span)]


def parse(line: str, *, whole: bool) -> None:
    """Raises UsageError unless devtool accepts the command line."""
    words = [word for word in shlex.split(re.sub(r"<[^<>]*>", "NAME", line), comments=True)[1:] if word != "\\"]
    try:
        context = cli.make_context("devtool", list(words))
        name, command, rest = cli.resolve_command(context, [*context._protected_args, *context.args])
        command.make_context(name, rest, parent=context)
    except click.exceptions.Exit:
        pass  # --help
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        assert not whole, f"expected a whole command, got {line}"


@each_page
def test_commands_parse(document):
    for line, whole in shown_commands(document):
        if "<command>" in line or "devtool: " in line:
            continue
        try:
            parse(line, whole=whole)
        except click.UsageError as error:
            pytest.fail(f"{document} shows {line!r}: {error.format_message()}")


def test_commands_are_found_and_judged():
    assert len(shown_commands(page("docs/guide/first-op.md"))) > 5
    parse("bin/devtool test rms_norm --sanitize address -- -k f32", whole=True)
    for line in ("devtool biuld", "devtool build --fast", "devtool test --device tpu"):
        with pytest.raises(click.UsageError):
            parse(line, whole=True)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_examples_in_the_help_work(name):
    (example,) = re.findall(r"Example: (devtool .*)", cli.commands[name].help)
    parse(example, whole=True)
    ops = set(OPS) & set(shlex.split(example))
    for case in re.findall(r"--case (\S+)", example):
        listed = [sys.executable, "-P", "-m", "devtool", "hlo", *ops, "--list"]
        output = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert case in [line.partition("\t")[0] for line in output.splitlines()], f"the help of {name} names {case}"


@each_page
def test_python_blocks_compile(document):
    for block in document.blocks:
        if block.words[:1] == ("python",):
            compile(block.text, f"{document}:{block.line}", "exec")


def documented(node: ast.AST) -> dict[str, set[str]]:
    """The sections of a docstring that list names, and the names: {"Args": {"x"}}."""
    text = ast.get_docstring(node) or ""
    sections = re.findall(r"^(Args|Attributes):\n((?: +.*\n?|\n)+)", text, re.MULTILINE)
    groups = {title: re.findall(r"^    ((?:\w+, )*\w+):", body, re.MULTILINE) for title, body in sections}
    return {title: {name for group in found for name in group.split(", ")} for title, found in groups.items()}


def parameters(node: ast.FunctionDef) -> set[str]:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument} - {"self", "cls", "ctx"}


def fields(node: ast.ClassDef) -> set[str]:
    """Annotated names of a class's body, and all attributes that its methods set on self."""
    stored = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    return stored | {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}


def is_op(node: ast.FunctionDef) -> bool:
    return any("custom_op" in ast.unparse(decorator) for decorator in node.decorator_list)


@pytest.mark.parametrize(
    "path", [*python_files("pyxla"), *python_files("kernels"), *python_files("devtool")], ids=name_of
)
def test_docstrings_fit_the_signatures(path):
    """No docstring names a missing argument or attribute; for pyxla and for ops, Args is complete."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        where, sections, taken = f"{path.name}:{node.lineno} {node.name}", documented(node), set()
        if isinstance(node, ast.ClassDef):
            own = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            taken = parameters(own[0]) if own else set()
            assert sections.get("Attributes", set()) <= fields(node) | taken, where
        else:
            taken = parameters(node)
        if "Args" in sections:
            assert sections["Args"] <= taken, where
            public = path.is_relative_to(ROOT / "pyxla") and not node.name.startswith("_")
            if public or (isinstance(node, ast.FunctionDef) and is_op(node)):
                assert sections["Args"] == taken, where


@pytest.mark.parametrize("path", python_files("pyxla"), ids=name_of)
def test_public_names_have_docstrings(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path.name} says nothing about itself"
    for node in [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] != "_")]:
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith(("_", "pytest_")):
                assert ast.get_docstring(child), f"{path.name}:{child.lineno} {child.name}"


# Hosts that the docs may link to. No package index: that is the reader's own setting.
# www.w3.org is in the name of SVG's namespace.
HOSTS = {
    "www.apache.org",
    "github.com",
    "arxiv.org",
    "openxla.org",
    "docs.pytorch.org",
    "keepachangelog.com",
    "www.w3.org",
}
HOST = re.compile(r"(?:\bhttps?://|(?<![\w@./-]))((?:[a-z0-9-]+\.)+(?:org|com|io|net|ai))(?![\w(-])")


def test_no_file_names_a_package_index():
    assert HOST.findall("see https://a.example.org/x or b.example.com.") == ["a.example.org", "b.example.com"]
    found = {}
    for path in files():
        if path.suffix in {"", ".md", ".py", ".h", ".cc", ".cu", ".cmake", ".jinja", ".toml", ".txt", ".in", ".json"}:
            found[name_of(path)] = set(HOST.findall(path.read_text())) - HOSTS
    found = {name: hosts for name, hosts in found.items() if hosts}
    assert found.pop("tests/docs/test_documents.py") == {"a.example.org", "b.example.com"}
    assert found == {}


@each_page
def test_nothing_is_left_to_fill_in(document):
    assert not re.search(r"@@\w+@@|\bTODO\b|\bFIXME\b|\bXXX\b", document.text)


@each_page
def test_plain_words(document):
    found = re.search(r"\b(simply|obviously|easily|seamless\w*|blazing\w*|powerful|leverag\w+)\b", document.prose, re.I)
    assert found is None, f"{document} says {found[0]!r}"


def test_changelog_has_a_place_for_the_next_version():
    assert re.search(r"^## Unreleased\n\n### Added\n\n- ", page("CHANGELOG.md").text, re.MULTILINE)


def test_readme_shows_how_many_tests_there_are_today():
    """The numbers that its first command prints: passed and skipped tests ran, deselected tests are slow."""
    shown = re.search(r"= (\d+) passed, (\d+) skipped, (\d+) deselected in ", (text := page("README.md").text))
    passed, skipped, slow = map(int, shown.groups())
    plugins = ("-p", "pyxla.pytest_plugin", "-p", "devtool.testing.pytest_outcomes", "--without-slow")
    command = [sys.executable, "-m", "pytest", *plugins, "--collect-only", "-q", "kernels/paged_attention"]
    command.append("kernels/paged_attention_flashinfer")  # its implementation
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert f"{passed + skipped}/{passed + skipped + slow} tests collected ({slow} deselected)" in said, said[-200:]
    assert f"\n{passed} passed, 0 failed, {skipped} skipped, {slow} slow ones left out (" in text


def test_both_tables_of_vllm_agree():
    """The README's and the guide's name the supported releases, their torch_xla and where they were tried."""
    tables = []
    for name in ("README.md", "docs/guide/vllm.md"):
        rows = re.findall(r"^\| (\d+\.\d+\.\d+) \|(.*)\|$", page(name).text, re.MULTILINE)
        cells = {release: [cell.strip() for cell in rest.split("|")] for release, rest in rows}
        tables.append({release: (row[1], row[-1]) for release, row in cells.items()})
    assert tables[0] == tables[1] and tables[0].keys() == RELEASES.keys()


def test_readme_says_how_large_the_wheels_are():
    """Within half a gigabyte, without the bytecode that Python adds later."""
    stamp = Path(sys.prefix, "stamp")
    if not (stamp.is_file() and stamp.read_text().partition("\n")[0].endswith(" cpu")):
        pytest.skip("needs a .venv of the set cpu: PYXLA_SET=cpu bin/devtool")
    said = float(re.search(r"\(([\d.]+) GB on the disk", page("README.md").text)[1])
    found = (path.lstat().st_size for path in Path(sys.prefix).rglob("*") if path.suffix != ".pyc")
    assert sum(found) / 1e9 == pytest.approx(said, abs=0.5)
