"""Keeps the headers and the recipe of a released pyxla, for tests/library/test_contract.py.

.venv/bin/python tests/library/released/freeze.py v0.1.0

Writes op_table_<version>.tar.xz next to this file: the host headers and the CMake recipe of that revision, 26 KB.
`xz -dc FILE | git get-tar-commit-id` prints the revision. Run it at each release; it replaces the archive of an earlier
release with the same version of the op table.
"""

import lzma
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
# The headers that only device code includes are left out. Before op table 4 the files were in the folder of the ops.
PATHS = ("pyxla/include", "pyxla/cmake", ":!pyxla/include/pyxla/device")
PATHS_OF_OP_TABLE_3 = ("kernels/common/*.h", "kernels/cmake", "kernels/CMakeLists.txt", ":!kernels/common/device")


def freeze(revision: str) -> Path:
    """Writes the archive of a revision and returns its path."""
    paths = PATHS if _git("ls-tree", revision, "pyxla/cmake") else PATHS_OF_OP_TABLE_3
    tar = _git("archive", "--format=tar", revision, "--", *paths)
    (version,) = re.findall(rb"kOpTableVersion = (\d+);", tar)
    path = FOLDER / f"op_table_{version.decode()}.tar.xz"
    path.write_bytes(lzma.compress(tar, preset=9))
    return path


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    print(freeze(sys.argv[1]))
