"""The folder that Sphinx reads: the repository's Markdown and generated pages, with links that fit the site."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from sphinx.errors import ExtensionError
from sphinx.util import logging

from devtool import project
from devtool.repository import Repository

# Markdown outside docs/ -> its page in any site.
_DOCUMENTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# docs/index.md is the front page in place of README.md, and may include it.
_INCLUDED_README = "_readme.md"
# A fence with its language, a code span, a tag, a link, or the address of one: what is inside of code is not a link.
_PIECE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)\n.*?^[ \t]*(?P=fence)[ \t]*$"
    r"|(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|<!--.*?-->"
    r"|<(?:a|img)\s[^>]*?\b(?:href|src)=[\"'](?P<html>[^\"']*)[\"'][^>]*>"
    r"|(?P<text>!?\[(?:[^\[\]\\]|\\.|\[[^\]]*\](?:\([^)\s]*\))?)*\])\((?P<target><[^>\n]+>|[^)\s]+)(?P<title>\s+\"[^\"]*\")?\)"
    r"|^ {0,3}(?P<label>\[[^\]\n]+\]:[ \t]+)(?P<address>\S+)",
    re.MULTILINE | re.DOTALL,
)
_LANGUAGES = {".cc": "c++", ".h": "c++", ".cu": "cuda", ".cuh": "cuda", ".py": "python", ".toml": "toml"}
_LANGUAGES |= {".json": "json", ".nix": "nix", ".sh": "bash", ".svg": "xml"}
_PICTURES = {".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp"}

_log = logging.getLogger(__name__)


class Site:
    """The sources of one build.

    Args:
        repository: what the pages are of.
        folder: where Sphinx reads; empty.
        documents: files and folders outside docs/, in addition to README.md and the like, and the page of each.

    Attributes:
        root: the repository's folder.
    """

    def __init__(self, repository: Repository, folder: Path, documents: dict[str, str]):
        self.repository, self.root, self.folder = repository, repository.root, folder
        self._written: set[str] = set()
        self._shown: set[str] = set()
        names = [path.relative_to(self.root / "docs") for path in sorted((self.root / "docs").rglob("*.md"))]
        own = [name.as_posix() for name in names if not any(part.startswith(("_", ".")) for part in name.parts)]
        # Where a link leads: a document, or a folder that has a page.
        self._pages = _DOCUMENTS | {"kernels": "ops/index.md"} | documents | {f"docs/{name}": name for name in own}
        self._documents = {name: page for name, page in self._pages.items() if (self.root / name).is_file()}
        if "index.md" in own and "README.md" in self._documents:
            self._documents["README.md"] = _INCLUDED_README
        self._require_free_names()
        for op in project.op_names():
            # A link to the op's Python file or folder is a link to what it computes: its page.
            for name in ("", f"/{op}.py", "/NOTES.md"):
                self._pages[f"kernels/{op}{name}"] = f"ops/{op}.md"

    def _require_free_names(self) -> None:
        """Raises ExtensionError if two documents would be one page, or one would be a generated page."""
        taken: dict[str, str] = {}
        for source, page in self._documents.items():
            other = taken.setdefault(page, source)
            if page.startswith(("ops/", "source/")) or other != source:
                got = f"the page of {other}" if other != source else "a page that devtool writes"
                raise ExtensionError(f"{source}: page: expected one of its own, got {page}, {got}; rename the file")

    def document(self, source: str) -> str:
        """A Markdown file of the repository, its links changed to those of the site."""
        return self.links((self.root / source).read_text(), source, self._documents[source])

    def links(self, text: str, source: str, page: str) -> str:
        """Markdown with its links changed.

        Args:
            text: as it is in the file `source` of the repository.
            source: what the links are relative to; from the repository's root.
            page: where the text goes; from the site's root.
        """

        def changed(match: re.Match) -> str:
            def target(link: str, *, included: bool = False) -> str:
                found, _, anchor = self._target(link, source, included).partition("#")
                relative = quote(os.path.relpath(found, PurePosixPath(page).parent))
                return f"{relative}#{anchor}" if anchor else relative

            if match["info"] and (include := re.fullmatch(r"\{include\} (\S+)", match["info"].strip())):
                return match[0].replace(include[1], target(include[1], included=True), 1)
            if match["html"] and _is_file(match["html"]):
                got = f"a tag of HTML with {match['html']}"
                _log.warning(f"{source}: link: expected Markdown for a file of the repository, got {got}")
            if match["address"]:
                return f"{match['label']}{target(match['address'])}" if _is_file(match["address"]) else match[0]
            if match["target"] is None:
                return match[0]
            # A picture may be the text of a link.
            inside = f"{match['text'].partition('[')[0]}[{_PIECE.sub(changed, match['text'].partition('[')[2][:-1])}]"
            if not _is_file(match["target"]):
                return f"{inside}({match['target']}{match['title'] or ''})"
            # A page is called by its title there, where the text is the name of its file.
            shown = "[]" if re.fullmatch(r"\[`?[\w./-]+\.md`?\]", inside) else inside
            return f"{shown}({target(match['target'])}{match['title'] or ''})"

        return _PIECE.sub(changed, text)

    def _target(self, link: str, source: str, included: bool) -> str:
        name, hash_, anchor = link.strip("<>").partition("#")
        # On GitHub a slash at the beginning is the repository's root.
        base = PurePosixPath() if name.startswith("/") else PurePosixPath(source).parent
        path = PurePosixPath(os.path.normpath(base / unquote(name).lstrip("/"))).as_posix()
        there = self.root / path
        if included and path in self._documents:
            return self._documents[path]
        if path in self._pages:
            return f"{self._pages[path]}{hash_}{anchor}"
        if path.startswith("..") or not there.exists():
            _log.warning(f"{source}: link: expected a page, a file or a folder of the repository, got {link}")
            return "index.md"
        if there.suffix not in _PICTURES or there.is_dir():
            return f"{self.show(path)}{hash_}{anchor}"
        # Sphinx takes an escaped space in the name of a picture for what it is.
        target = quote(path.removeprefix("docs/")).replace("%", "_")
        (self.folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(there, self.folder / target)
        return target

    def show(self, path: str) -> str:
        """Where the site shows this file or folder of the repository."""
        self._shown.add(path)
        return f"source/{path}.md"

    def write(self, page: str, text: str) -> None:
        """Writes a page."""
        self._written.add(page)
        (self.folder / page).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / page).write_text(text)

    def finish(self) -> None:
        """Writes what is left: the documents, and the files that pages link to."""
        for source, page in self._documents.items():
            if page not in self._written:
                self.write(page, self.document(source))
        index = (self.folder / "index.md").read_text()
        if not re.search(r"^[`:~]{3,}\{toctree\}", index, re.MULTILINE):
            self.write("index.md", f"{index.rstrip()}\n\n{self._toctrees()}")
        for path in sorted(self._shown):
            self.write(f"source/{path}.md", self._listing(path))
        self.write("source/index.md", self._list_of_files())

    def _toctrees(self) -> str:
        """All pages, for an index that lists none: a tree for docs/, one for each of its folders, one for the rest."""
        trees: dict[str, list[str]] = {"": ["Ops <ops/index>"]}
        rest = []
        for source, page in sorted(self._documents.items()):
            name = page.removesuffix(".md")
            if source.startswith("docs/") and name != "index":
                trees.setdefault(name.rpartition("/")[0], []).append(name)
            elif page not in ("index.md", _INCLUDED_README):
                rest.append(name)
        trees["project"] = [*trees.get("project", ()), *rest, "source/index"]
        return "\n".join(
            "\n".join(["```{toctree}", *([f":caption: {folder}"] if folder else []), ":hidden:", "", *pages, "```", ""])
            for folder, pages in trees.items()
        )

    def _listing(self, path: str) -> str:
        head = f"---\norphan: true\n---\n\n# {path}\n\n"
        if (self.root / path).is_dir():
            entries = [entry for entry in sorted((self.root / path).iterdir()) if not entry.name.startswith(".")]
            return head + "".join(f"- `{entry.name}`\n" for entry in entries)
        try:
            text = (self.root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return f"{head}It is not a text.\n"
        longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{head}{fence}{_LANGUAGES.get(Path(path).suffix, 'text')}\n{text.rstrip()}\n{fence}\n"

    def _list_of_files(self) -> str:
        lines = [f"- [{path}]({path}.md)\n" for path in sorted(self._shown)]
        return "# Source files\n\nThe files that these pages link to.\n\n" + "".join(lines)


def _is_file(link: str) -> bool:
    return not re.match(r"<?(?:#|//|\w[\w+.-]*:)", link)
