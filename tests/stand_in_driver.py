"""Stand-ins for NVIDIA's driver, in the folders in which machines have it, beside libraries that are not part of it."""

import os
import subprocess
from pathlib import Path

# It starts only if dlopen finds the library that the real one opens by name, and it has one GPU.
LIBCUDA = r"""
#include <dlfcn.h>
#include <string.h>
int cuInit(unsigned flags) { return dlopen(OPENS, RTLD_LAZY) ? 0 : 999; }
int cuGetErrorString(int status, const char** text) { *text = dlerror(); return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int size, int device) { strncpy(name, "stand-in", size); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (size_t)80 << 30; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
"""
COMPANIONS = ("libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libnvidia-ml.so.1")
# What Debian's toolkit and a compiler put into the same folder.
DECOYS = (
    *("libcudart.so.13", "libnvrtc.so.13", "libnvJitLink.so.13", "libnvToolsExt.so.1"),
    *("libstdc++.so.6", "libGL.so.1"),
)


def build(path: Path, code: str = "int nothing;", *flags: str) -> None:
    """A library whose SONAME is its file name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, "-x", "c", "-", "-x", "none", *flags]
    subprocess.run(command, input=code, check=True, text=True)


def driver(folder: Path, version: int = 13000, opens: str = COMPANIONS[0]) -> None:
    """A driver's libraries alone."""
    build(folder / "libcuda.so.1", LIBCUDA, f"-DVERSION={version}", f'-DOPENS="{opens}"')
    for name in COMPANIONS:
        build(folder / name)


def decoys(folder: Path) -> None:
    for name in DECOYS:
        build(folder / name)


def nixos(root: Path) -> None:
    """NixOS: a folder of links to the store, where Mesa's libraries are too."""
    driver(root / "nix/store/driver/lib")
    decoys(root / "nix/store/driver/lib")
    folder = root / "run/opengl-driver/lib"
    folder.mkdir(parents=True)
    for path in (root / "nix/store/driver/lib").iterdir():
        (folder / path.name).symlink_to(path)


def wsl(root: Path) -> None:
    """WSL: libcuda is linked to libdxcore, which is beside it."""
    folder = root / "usr/lib/wsl/lib"
    decoys(folder)
    for name in ("libdxcore.so", "libd3d12.so", "libd3d12core.so", "libnvidia-ml.so.1"):
        build(folder / name)
    flags = ("-DVERSION=13000", '-DOPENS="libdxcore.so"', "-Wl,--no-as-needed", f"-L{folder}", "-ldxcore")
    build(folder / "libcuda.so.1", LIBCUDA, *flags)


def debian(root: Path, version: int = 12020) -> None:
    """Debian: links by way of /etc/alternatives, found in ld.so.cache after libraries of another architecture."""
    folder, current = root / "usr/lib/own", root / "usr/lib/own/nvidia/current"
    driver(current, version)
    (root / "etc/alternatives").mkdir(parents=True)
    for name in ("libcuda.so.1", *COMPANIONS):
        (root / f"etc/alternatives/nvidia--{name}").symlink_to(current / name)
        (folder / name).symlink_to(root / f"etc/alternatives/nvidia--{name}")
    decoys(folder)
    other = root / "usr/lib/other"
    if os.uname().machine == "x86_64":
        build(other / "libc.so.6", "int nothing;", "-m32", "-nostdlib")
        for name in ("libcuda.so.1", "libnvidia-glcore.so.1"):
            build(other / name, "int nothing;", "-m32", "-nostdlib", "-Wl,--no-as-needed", str(other / "libc.so.6"))
    (root / "etc/ld.so.conf").write_text(f"{other}\n{folder}\n")
    # -X: it leaves the links of the machine's folders, which it also reads, as they are.
    command = ["/sbin/ldconfig", "-X", "-C", root / "etc/ld.so.cache", "-f", root / "etc/ld.so.conf"]
    subprocess.run(command, check=True)
