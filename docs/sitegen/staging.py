"""The folder that Sphinx reads: the repository's Markdown and generated pages, with links that fit the site."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from sphinx.errors import ExtensionError

# Markdown outside docs/, and where the site has it.
PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "kernels/README.md": "reference/op-folder.md",
    "kernels": "ops/index.md",
    "pyxla/include": "reference/cpp.md",
}
# A fence with its language, a code span, or a link: what stands in code is not a link.
_PIECE = re.compile(
    r"^(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)\n.*?^(?P=fence)[ \t]*$"
    r"|(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|(?P<text>!?\[(?:[^\[\]\\]|\\.|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)
_LANGUAGES = {".cc": "c++", ".h": "c++", ".cu": "cuda", ".cuh": "cuda", ".py": "python", ".toml": "toml"}
_LANGUAGES |= {".json": "json", ".nix": "nix", ".sh": "bash", ".svg": "xml"}


class Site:
    """The sources of one build.

    Args:
        root: the checkout.
        folder: where Sphinx reads; empty.
    """

    def __init__(self, root: Path, folder: Path):
        self.root, self.folder = root, folder
        self._written: set[str] = set()
        self._shown: set[str] = set()
        own = [path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md")]
        self._pages = PAGES | {f"docs/{name}": name for name in own}
        self._documents = [name for name in self._pages if (root / name).is_file()]
        for op in self.ops():
            # A link to the op's Python file or folder is a link to what it computes: its page.
            for name in ("", f"/{op}.py", "/NOTES.md"):
                self._pages[f"kernels/{op}{name}"] = f"ops/{op}.md"

    def ops(self) -> list[str]:
        """The op folders."""
        marks = ("*_ffi.cc", "implements")
        return sorted({path.parent.name for mark in marks for path in self.root.glob(f"kernels/*/{mark}")})

    def document(self, source: str) -> str:
        """A Markdown file of the checkout, its links changed to those of the site."""
        return self.links((self.root / source).read_text(), source, self._pages[source])

    def links(self, text: str, source: str, page: str) -> str:
        """Markdown with its links changed.

        Args:
            text: as it stands in the file `source` of the checkout.
            source: what the links are relative to; from the checkout's root.
            page: where the text goes; from the site's root.
        """

        def changed(match: re.Match) -> str:
            if match["info"] and (include := re.fullmatch(r"\{include\} (\S+)", match["info"].strip())):
                return match[0].replace(include[1], self._target(include[1], source, page), 1)
            if match["target"] is None or re.match(r"#|\w+:", match["target"]):
                return match[0]
            target = self._target(match["target"], source, page)
            # A page is called by its title there, where the text is the name of its file.
            text = "[]" if re.fullmatch(r"\[`?[\w./-]+\.md`?\]", match["text"]) else match["text"]
            return f"{text}({target})"

        return _PIECE.sub(changed, text)

    def _target(self, link: str, source: str, page: str) -> str:
        name, _, anchor = link.partition("#")
        path = PurePosixPath(os.path.normpath(PurePosixPath(source).parent / name)).as_posix()
        there = self.root / path
        if path in self._pages:
            target = self._pages[path]
        elif there.suffix == ".svg" and there.is_relative_to(self.root / "docs"):
            target = there.relative_to(self.root / "docs").as_posix()
        elif there.is_file():
            self._shown.add(path)
            target = f"source/{path}.md"
        else:
            raise ExtensionError(f"{source}: link: expected a page or a file of the checkout, got {link}")
        relative = os.path.relpath(target, PurePosixPath(page).parent)
        return f"{relative}#{anchor}" if anchor else relative

    def show(self, path: str) -> str:
        """Where the site shows this file of the checkout."""
        self._shown.add(path)
        return f"source/{path}.md"

    def write(self, page: str, text: str) -> None:
        """Writes a page."""
        self._written.add(page)
        (self.folder / page).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / page).write_text(text)

    def finish(self) -> None:
        """Writes what is left: the documents, the pictures, the files that pages link to."""
        for source in self._documents:
            if self._pages[source] not in self._written:
                self.write(self._pages[source], self.document(source))
        for picture in (self.root / "docs").rglob("*.svg"):
            self.write(picture.relative_to(self.root / "docs").as_posix(), picture.read_text())
        for path in sorted(self._shown):
            self.write(f"source/{path}.md", self._listing(path))
        self.write("source/index.md", self._list_of_files())

    def _listing(self, path: str) -> str:
        language = _LANGUAGES.get(Path(path).suffix, "text")
        longest = max((len(run) for run in re.findall(r"`+", (self.root / path).read_text())), default=0)
        fence = "`" * max(3, longest + 1)
        return f"---\norphan: true\n---\n\n# {path}\n\n{fence}{language}\n{(self.root / path).read_text()}{fence}\n"

    def _list_of_files(self) -> str:
        lines = [f"- [{path}]({path}.md)\n" for path in sorted(self._shown)]
        return "# Source files\n\nThe files that these pages link to.\n\n" + "".join(lines)
