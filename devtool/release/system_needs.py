"""What a library needs from the system that it runs on, read from its file with pyelftools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# A library may need what Ubuntu 22.04 and Debian 12 provide, the oldest systems that are still common where this torch
# runs. They have glibc 2.35 and 2.36, and libstdc++ and libgcc from GCC 12. The driver's libcuda is not in the list,
# because the CUDA runtime inside the library opens it on first use.
LIBRARIES = frozenset(
    {
        *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
        *("libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    }
)
NEWEST = {"GLIBC": "2.35", "GLIBCXX": "3.4.30", "CXXABI": "1.3.13", "GCC": "12.0.0"}


@dataclass(frozen=True)
class Needs:
    """What the dynamic loader will look for.

    Attributes:
        libraries: names (DT_NEEDED), in their order.
        search_paths: DT_RPATH and DT_RUNPATH.
        versions: versions of symbols, such as GLIBC_2.34.
    """

    libraries: tuple[str, ...]
    search_paths: tuple[str, ...]
    versions: tuple[str, ...]

    def highest(self) -> list[str]:
        """The highest version of each kind, and every version that is not a number, such as GLIBC_PRIVATE."""
        found: dict[str, str] = {}
        for name in sorted(self.versions, key=lambda name: (_number(name) or (), name)):
            found[name.rpartition("_")[0] if _number(name) else name] = name
        return sorted(found.values())

    def problems(
        self, beside: Path | None = None, newest: Mapping[str, str] = NEWEST
    ) -> Iterator[tuple[str, str, str]]:
        """(what, expected, got) for each need that those systems do not meet.

        Args:
            beside: a library that comes with this one, in a folder next to it.
            newest: the newest version of each kind that the systems have.
        """
        own_path = beside and f"$ORIGIN/{beside.parent.name}"
        for name in self.libraries:
            if name not in LIBRARIES and name != (beside and beside.name):
                yield "needs", "a library of every system", name
        for path in self.search_paths:
            if path != own_path:
                yield "needs", f"no RPATH and no RUNPATH{f' but {own_path}' if own_path else ''}", path
        for name in self.highest():
            kind = name.rpartition("_")[0]
            if kind not in newest:
                yield "versions", f"versions of {', '.join(newest)}", name
            elif not _number(name) or _number(name) > _number(f"{kind}_{newest[kind]}"):
                yield "versions", f"at most {kind}_{newest[kind]}", name


def _number(version: str) -> tuple[int, ...] | None:
    parts = version.rpartition("_")[2].split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else None


def read_needs(path: Path) -> Needs:
    """Reads the dynamic section and the symbol versions of an ELF library.

    Raises:
        ValueError: the file is not an ELF library, or is damaged.
    """
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            tags = [tag for segment in elf.iter_segments("PT_DYNAMIC") for tag in segment.iter_tags()]
            sections = list(elf.iter_sections("SHT_GNU_verneed"))
            versions = [
                aux.name for section in sections for _, auxiliary in section.iter_versions() for aux in auxiliary
            ]
    except OSError:
        raise
    except Exception as error:  # whatever pyelftools' parser trips over
        raise ValueError(f"{type(error).__name__}: {error}") from error
    kinds = [tag.entry.d_tag for tag in tags]
    if not tags or ("DT_VERNEED" in kinds and not sections):
        raise ValueError("no dynamic section" if not tags else "no section with the symbols' versions")
    return Needs(
        tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        tuple(
            getattr(tag, tag.entry.d_tag[3:].lower()) for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
        ),
        tuple(dict.fromkeys(versions)),
    )
