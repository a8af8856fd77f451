"""Finds NVIDIA's driver: libcuda.so.1 and what comes with it, the only libraries that must be the machine's own.

Nix's loader reads neither /etc/ld.so.cache nor /usr/lib. So `load` opens the driver by its path where the loader does
not find it, and `nix develop` sets LD_LIBRARY_PATH to a folder of links to the driver's libraries alone:

python3 -I driver.py FOLDER

This file needs only the standard library, because that script and devtool run it without `import pyxla`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

_LIBCUDA = "libcuda.so.1"
# In the order of search. Where one of them has libcuda.so.1, another is a mistake: in WSL a driver for Linux.
_FOLDERS = {"NixOS": "run/opengl-driver/lib", "WSL": "usr/lib/wsl/lib"}
# Not those of the CUDA toolkit, which may be beside them: the wheels have their own libcudart and libnvrtc.
_LIBRARIES = re.compile(r"(libcuda|libcudadebugger|libnvidia-[\w-]+|libnvcuvid|libnvoptix|libdxcore|libd3d12\w*)\.so")
# What libcuda.so.1 needs or opens by name, and libnvidia-ml, which NCCL and CuPy open.
_OPENED = re.compile(r"(libdxcore|libnvidia-(gpucomp|ml|nvvm\d*|ptxjitcompiler))\.so")
# The architecture as ldconfig writes it.
_ABI = {"x86_64": "x86-64", "aarch64": "AArch64"}
_RTLD_DI_LINKMAP = 2


class Driver(NamedTuple):
    """An installed driver.

    Attributes:
        origin: how it was found, and where: "WSL: /usr/lib/wsl/lib".
        libraries: name -> path; libcuda.so.1 is one of them.
    """

    origin: str
    libraries: dict[str, Path]


@cache
def find(root: str = "/") -> Driver | None:
    """The driver of the machine, in NixOS's folder, in WSL's, or where the machine's own loader finds it; or None.

    Args:
        root: the folder that all paths begin with.
    """
    for system, name in _FOLDERS.items():
        folder = Path(root, name)
        if (folder / _LIBCUDA).is_file():
            files = {path.name: path for path in sorted(folder.iterdir()) if _LIBRARIES.match(path.name)}
            return Driver(f"{system}: {folder}", files)
    libraries = _cached_libraries(Path(root, "etc/ld.so.cache"))
    return Driver(f"ld.so.cache: {libraries[_LIBCUDA]}", libraries) if _LIBCUDA in libraries else None


def _cached_libraries(cache_file: Path) -> dict[str, Path]:
    """The driver's libraries for this architecture in ld.so.cache; the loader takes the first of each name."""
    program = next((path for path in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.access(path, os.X_OK)), None)
    abi = _ABI.get(os.uname().machine)
    if not program or not abi:
        return {}
    # On Ubuntu ldconfig is a shell script, which must not run with Nix's libraries.
    listed = subprocess.run(
        [program, "-p", "-C", cache_file], env={"LC_ALL": "C"}, capture_output=True, text=True, check=False
    ).stdout
    libraries: dict[str, Path] = {}
    for name, path in re.findall(rf"^\s+(\S+) \(libc6,{abi}[^)]*\) => (.+)$", listed, re.MULTILINE):
        if _LIBRARIES.match(name) and Path(path).is_file():
            libraries.setdefault(name, Path(path))
    return libraries


@cache
def load(root: str = "/") -> ctypes.CDLL:
    """libcuda.so.1, as the loader finds it, else as `find` does; from then on dlopen("libcuda.so.1") works anywhere.

    Raises:
        OSError: there is none, or it cannot be loaded.
    """
    try:
        return ctypes.CDLL(_LIBCUDA)
    except OSError:
        driver = find(root)
        if driver is None:
            raise
    # The loader knows a loaded library by its SONAME. libcuda comes last, because it may need the others.
    for name, path in driver.libraries.items():
        if _OPENED.match(name):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(path))
    return ctypes.CDLL(str(driver.libraries[_LIBCUDA]))


def origin(root: str = "/") -> str:
    """Where `load` takes libcuda.so.1 from: "ld.so.cache: /lib/x86_64-linux-gnu/libcuda.so.1".

    Raises:
        OSError: as `load`.
    """
    path = _path(load(root))
    if path.parent in map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))):
        target = path.readlink() if path.is_symlink() else Path()
        return f"LD_LIBRARY_PATH: {path}" + (f", a link to {target}" if target.is_absolute() else "")
    driver = find(root)
    found = driver is not None and path in driver.libraries.values()
    return driver.origin if found else f"the loader's search: {path}"


class _LinkMap(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


def _path(library: ctypes.CDLL) -> Path:
    """The path by which the loader opened a library, in which links are not followed."""
    entry = ctypes.POINTER(_LinkMap)()
    ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), _RTLD_DI_LINKMAP, ctypes.byref(entry))
    return Path(os.fsdecode(entry.contents.name))


def install_hint(root: str = "/") -> str:
    """What to do on this machine if there is no driver."""
    if Path(root, "etc/NIXOS").exists():
        options = 'hardware.graphics.enable = true and services.xserver.videoDrivers = [ "nvidia" ]'
        return f"set {options} in NixOS' configuration, or set PJRT_DEVICE=CPU"
    where = " in Windows, not in WSL" if Path(root, "usr/lib/wsl").is_dir() else ""
    return f"install NVIDIA's driver{where}, or set PJRT_DEVICE=CPU"


def link(folder: Path, root: str = "/") -> bool:
    """Makes a folder of links to the driver's libraries and removes its other links; False: there is no driver."""
    driver = find(root)
    wanted = driver.libraries if driver else {}
    if driver:
        folder.mkdir(parents=True, exist_ok=True)
    links = {path.name: path.readlink() for path in folder.glob("*") if path.is_symlink()}
    for name in links.keys() - wanted.keys():
        (folder / name).unlink(missing_ok=True)
    for name, target in wanted.items():
        if links.get(name) != target:
            # By way of another name, because a second shell may start at the same time.
            made = folder / f".{name}.{os.getpid()}"
            made.symlink_to(target)
            made.replace(folder / name)
    return driver is not None


def main(folder: str, root: str = "/") -> None:
    """Makes the folder of links and prints its name; prints nothing if there is no driver."""
    if link(Path(folder), root):
        print(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
