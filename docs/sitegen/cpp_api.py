"""A page for the C++ headers that a kernel includes, from their comments."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from devtool.pages.staging import Site

ROOT = Path(__file__).resolve().parents[2]
KERNELS, INCLUDE = ROOT / "kernels", ROOT / "pyxla/include"


def clang_arguments() -> list[str]:
    """What the headers are read with: as in the build, but for CUDA's names, which come from docs/cuda_names."""
    jaxlib = Path(importlib.util.find_spec("jaxlib").origin).parent / "include"
    own = [f"-I{KERNELS}", f"-I{INCLUDE}", f"-I{ROOT / 'docs/cuda_names'}", "-isystem", str(jaxlib)]
    # `restrict` is no word of C++ to Sphinx; a .cuh is no header to clang, which warns of its #pragma once.
    return ["-std=c++20", "-DPYXLA_WITH_CUDA=1", "-D__restrict=", "-Wno-pragma-once-outside-header", *own]


def headers() -> list[Path]:
    """The headers of pyxla and of the families, kernels/_*."""
    folders = [INCLUDE, *KERNELS.glob("_*/")]
    found = sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in (".h", ".cuh"))
    names = [p.name for p in found]
    assert len(set(names)) == len(names), "a header's page is named after its file"
    return found


def write(site: Site) -> None:
    """Writes a page for each header, and into cpp.md the list of them."""
    rows = ""
    for header in headers():
        name = header.relative_to(INCLUDE if header.is_relative_to(INCLUDE) else KERNELS).as_posix()
        about, _ = heading(header)
        rows += f"| [{name}](cpp/{header.name}.md) | {about[0]} |\n"
        text = f"# {name}\n\n" + "\n\n".join(about)
        text += f"\n\nThe file: [{name}](../../{site.show(header.relative_to(ROOT).as_posix())}).\n\n"
        if "/**" in header.read_text():
            text += f"```{{eval-rst}}\n.. cpp:autodoc:: {header.relative_to(ROOT).as_posix()}\n```\n"
        site.write(f"reference/cpp/{header.name}.md", text)
    overview = site.document("docs/reference/cpp.md")
    toctree = "\n```{toctree}\n:hidden:\n:glob:\n\ncpp/*\n```\n"
    site.write(
        "reference/cpp.md",
        overview.replace("<!-- headers -->\n", f"| header | what it holds |\n|---|---|\n{rows}") + toctree,
    )


def heading(header: Path) -> tuple[list[str], int]:
    """The paragraphs of the comment that a header begins with, and how many lines it has."""
    lines = []
    for line in header.read_text().splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" "))
    paragraphs = "\n".join(lines).split("\n\n")
    shown = []
    for paragraph in paragraphs:
        code = [line for line in paragraph.splitlines() if line.startswith("  ")]
        words = " ".join(line for line in paragraph.splitlines() if not line.startswith("  "))
        shown += [words] if words else []
        shown += ["```c++\n" + "\n".join(line[2:] for line in code) + "\n```"] if code else []
    return shown, len(lines)
