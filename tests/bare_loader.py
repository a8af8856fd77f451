"""A dynamic loader that, like Nix's, reads neither /etc/ld.so.cache nor the machine's folders of libraries."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from elftools.elf.elffile import ELFFile

# The loader's default folders: strings that end with a slash.
_PATHS = re.compile(rb"(?<=\0)/(usr/)?lib(64|/[\w-]+)?/(?=\0)|(?<=\0)/etc/ld\.so\.cache(?=\0)")


class BareLoader:
    """Runs this Python's standard library under such a loader.

    Args:
        folder: an empty folder for the loader and for links to the libraries that Python needs.
        binaries: other libraries, whose needs are added.
        without: libraries that are not added.
    """

    def __init__(self, folder: Path, binaries: tuple[Path, ...] = (), without: tuple[str, ...] = ()):
        self._python = os.path.realpath(sys.executable)
        (interpreter,) = (
            segment.get_interp_name()
            for segment in ELFFile(io.BytesIO(Path(self._python).read_bytes())).iter_segments("PT_INTERP")
        )
        self._loader, self._libraries = folder / Path(interpreter).name, folder / "libraries"
        self._loader.write_bytes(_PATHS.sub(lambda match: b"/" + b"-" * (len(match[0]) - 1), read(interpreter)))
        self._loader.chmod(0o755)
        self._libraries.mkdir()
        listing = "import ctypes, subprocess, sys; print(*[getattr(m, '__file__', '') for m in sys.modules.values()])"
        loaded = subprocess.run([self._python, "-I", "-S", "-c", listing], check=True, capture_output=True, text=True)
        modules = [name for name in loaded.stdout.split() if name.endswith(".so")]
        needs = subprocess.run(["ldd", self._python, *modules, *binaries], check=True, capture_output=True, text=True)
        for name, path in set(re.findall(r"(\S+) => (/\S+)", needs.stdout)):
            if name not in without:
                (self._libraries / name).symlink_to(path)

    def run(self, script: str, *arguments: object, library_path: tuple[Path, ...] = (), **variables: str) -> list[str]:
        """The lines that a script prints in a process of its own."""
        folders = os.pathsep.join(map(str, (self._libraries, *library_path)))
        command = [self._loader, self._python, "-S", "-c", script, *map(str, arguments)]
        result = subprocess.run(
            command, env={"LD_LIBRARY_PATH": folders, **variables}, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()


def read(path: str) -> bytes:
    return Path(path).read_bytes()
