"""Compares the GPU code of two builds, kernel by kernel, whatever the kernels are called.

python benchmarks/same_machine_code.py BEFORE AFTER [OLD=NEW]...     (two folders of lib<op>.so; ops that were renamed)

It compares the instructions, registers, constants and shared memory size of each kernel in each cubin of a library.
Renaming functions, types or files changes symbols and line tables, but none of these. PTX is compared as text, after
its identifiers are numbered in order of appearance.
"""

import collections
import hashlib
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import triton

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
NOBITS = 8


def sections(cubin: bytes) -> dict[str, tuple[bytes, int, int]]:
    """Contents, size and sh_info of the sections of a 64-bit ELF file."""
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    found = {}
    for name, kind, _, _, offset, length, _, info, _, _ in headers:
        at = headers[names][4] + name
        text = cubin[at : cubin.index(b"\0", at)].decode()
        found[text] = (b"" if kind == NOBITS else cubin[offset : offset + length], length, info)
    return found


def kernels(cubin: bytes) -> list[str]:
    """A digest for each function of a cubin. The upper byte of a code section's sh_info is its register count."""
    parts = sections(cubin)
    digests = []
    for name, (code, _, info) in parts.items():
        if not name.startswith(".text."):
            continue
        function = name.removeprefix(".text.")
        digest = hashlib.sha256(code + bytes([info >> 24]))
        for constants in (".nv.constant0.", ".nv.constant2."):
            digest.update(parts.get(constants + function, (b"", 0, 0))[0])
        digest.update(str(parts.get(f".nv.shared.{function}", (b"", 0, 0))[1]).encode())
        digests.append(digest.hexdigest())
    return digests


def functions(ptx: str) -> list[str]:
    """A digest for each function of a PTX file, its identifiers numbered."""
    bodies = re.split(r"^(?=\.(?:visible |weak |extern )*\.?(?:entry|func) )", ptx, flags=re.MULTILINE)[1:]
    return [hashlib.sha256(numbered(body).encode()).hexdigest() for body in bodies]


def numbered(body: str) -> str:
    numbers: dict[str, int] = {}
    text = re.sub(r"\b_Z\w+|\$\w+", lambda name: f"name{numbers.setdefault(name[0], len(numbers))}", body)
    return re.sub(r"\s+", " ", text)


def code(library: Path) -> dict[str, collections.Counter]:
    found: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as folder:
        for option in ("-xelf", "-xptx"):
            subprocess.run([CUOBJDUMP, option, "all", library.resolve()], cwd=folder, capture_output=True)
        for path in Path(folder).iterdir():
            architecture = re.search(r"sm_\w+", path.name)[0] + path.suffix
            is_ptx = path.suffix == ".ptx"
            found[architecture].update(functions(path.read_text()) if is_ptx else kernels(path.read_bytes()))
    return found


def main(before: Path, after: Path, renamed: dict[str, str]) -> int:
    found = {renamed.get(path.name, path.name): path for path in before.glob("lib*.so")}
    names = [set(found), {path.name for path in after.glob("lib*.so")}]
    different = len(names[0] ^ names[1])
    for name in sorted(names[0] ^ names[1]):
        print(f"{name}: only in one of the two")
    for name in sorted(names[0] & names[1]):
        old, new = code(found[name]), code(after / name)
        for architecture in sorted(old.keys() | new.keys()):
            gone, come = old[architecture] - new[architecture], new[architecture] - old[architecture]
            total = old[architecture].total()
            different += gone.total() + come.total() + (total == 0)
            print(f"{name:36} {architecture:14} {total:4} functions, {gone.total()} gone, {come.total()} new")
    print("machine code: equal" if not different else "machine code: DIFFERENT")
    return bool(different)


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in pair for pair in sys.argv[3:]):
        sys.exit(__doc__)
    pairs = [pair.partition("=") for pair in sys.argv[3:]]
    sys.exit(main(*map(Path, sys.argv[1:3]), {f"lib{old}.so": f"lib{new}.so" for old, _, new in pairs}))
