"""NVIDIA's driver is found on NixOS, in WSL and by ld.so.cache, also under a loader that is like Nix's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyxla.pjrt import driver
from tests import stand_in_driver
from tests.bare_loader import BareLoader
from tests.conftest import ROOT
from tests.stand_in_driver import COMPANIONS, debian, nixos, wsl

DRIVER = ROOT / "pyxla/pjrt/driver.py"
LOADED = """
import ctypes, importlib.util, sys
spec = importlib.util.spec_from_file_location("driver", sys.argv[1])
driver = importlib.util.module_from_spec(spec)
spec.loader.exec_module(driver)
def opened(name):
    try:
        return ctypes.CDLL(name) and "found"
    except OSError:
        return "none"
print(opened("libcuda.so.1"))
try:
    cuda, version = driver.load(sys.argv[2]), ctypes.c_int()
    print(cuda.cuInit(0), cuda.cuDriverGetVersion(ctypes.byref(version)), version.value)
    print(driver.origin(sys.argv[2]))
except OSError as error:
    print(error)
print(opened("libcuda.so.1"), opened("libcudart.so.13"))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return BareLoader(tmp_path_factory.mktemp("loader"))


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Machines by name; "both" is WSL with a driver for Linux, "none" has no driver."""
    machines = {name: tmp_path_factory.mktemp(name) for name in ("NixOS", "WSL", "ld.so.cache", "both", "none")}
    for name, layouts in {"NixOS": (nixos,), "WSL": (wsl,), "ld.so.cache": (debian,), "both": (debian, wsl)}.items():
        for layout in layouts:
            layout(machines[name])
    return machines


# The origin, the files of the driver and the version of the machine's driver.
FOUND = {
    "NixOS": ("NixOS: {root}/run/opengl-driver/lib", {"libcuda.so.1", *COMPANIONS}, 13000),
    "WSL": (
        "WSL: {root}/usr/lib/wsl/lib",
        {"libcuda.so.1", "libdxcore.so", "libd3d12.so", "libd3d12core.so", "libnvidia-ml.so.1"},
        13000,
    ),
    "ld.so.cache": ("ld.so.cache: {root}/usr/lib/own/libcuda.so.1", {"libcuda.so.1", *COMPANIONS}, 12020),
}
FOUND["both"] = FOUND["WSL"]


def start(*arguments: object) -> str:
    """What the script prints, run as the shell of Nix runs it."""
    command = [sys.executable, "-I", DRIVER, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def links(folder: Path, root: Path) -> dict[str, Path]:
    """The links to a machine's files. ld.so.cache also has the driver of the machine that runs the test."""
    return {path.name: path.readlink() for path in folder.iterdir() if path.readlink().is_relative_to(root)}


@pytest.mark.parametrize("machine", FOUND)
def test_driver_is_found_and_nothing_else_of_the_machine(roots, machine):
    root, (origin, files, _) = roots[machine], FOUND[machine]
    found = driver.find(str(root))
    assert found.origin == origin.format(root=root)
    own = {name: path for name, path in found.libraries.items() if path.is_relative_to(root)}
    assert own.keys() == files and all(path.name == name and path.is_file() for name, path in own.items())


@pytest.mark.parametrize("machine", FOUND)
def test_load_under_a_loader_that_does_not_find_the_driver(bare, roots, machine):
    """`.#python` has no wrapper that sets LD_LIBRARY_PATH. The stand-in starts if dlopen finds what it opens."""
    root, (origin, _, version) = roots[machine], FOUND[machine]
    want = ["none", f"0 0 {version}", origin.format(root=root), "found none"]
    assert bare.run(LOADED, DRIVER, root) == want


@pytest.mark.parametrize("machine", FOUND)
def test_folder_of_links_under_a_loader_that_does_not_find_the_driver(bare, roots, machine, tmp_path):
    root, (_, files, version) = roots[machine], FOUND[machine]
    folder = tmp_path / "made/driver"
    assert start(folder, root) == f"{folder}\n"
    made = links(folder, root)
    assert made.keys() == files
    origin = f"LD_LIBRARY_PATH: {folder}/libcuda.so.1, a link to {made['libcuda.so.1']}"
    want = ["found", f"0 0 {version}", origin, "found none"]
    assert bare.run(LOADED, DRIVER, "/none", library_path=(folder,)) == want


def test_folder_of_links_follows_the_machine(roots, tmp_path):
    """A driver is replaced, then removed; a link that is right stays as it is."""
    start(tmp_path, roots["WSL"])
    made = {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    start(tmp_path, roots["WSL"])
    assert made and made == {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    start(tmp_path, roots["NixOS"])
    links_now = links(tmp_path, roots["NixOS"])
    assert links_now.keys() == FOUND["NixOS"][1] == {path.name for path in tmp_path.iterdir()}
    assert start(tmp_path, roots["none"]) == "" and list(tmp_path.iterdir()) == []


def test_machine_without_a_driver(bare, roots, tmp_path):
    assert driver.find(str(roots["none"])) is None
    assert start(tmp_path / "driver", roots["none"]) == "" and not (tmp_path / "driver").exists()
    missing = "libcuda.so.1: cannot open shared object file: No such file or directory"
    assert bare.run(LOADED, DRIVER, roots["none"]) == ["none", missing, "none none"]


def test_driver_that_the_loader_finds_is_taken(roots, tmp_path):
    """As without Nix: LD_LIBRARY_PATH comes first, also in WSL. The path is that of the loader, links not followed."""
    stand_in_driver.driver(tmp_path, version=11040)
    env = {**os.environ, "LD_LIBRARY_PATH": f"/none:{tmp_path}/"}
    command = [sys.executable, "-c", LOADED, DRIVER, roots["WSL"]]
    result = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    want = ["found", "0 0 11040", f"LD_LIBRARY_PATH: {tmp_path}/libcuda.so.1"]
    assert result.stdout.splitlines()[:3] == want


def test_driver_that_is_loaded_already(roots):
    """By LD_PRELOAD or a RUNPATH."""
    path = roots["ld.so.cache"] / "usr/lib/own/nvidia/current/libcuda.so.1"
    command = [sys.executable, "-c", LOADED, DRIVER, roots["WSL"]]
    env = {**os.environ, "LD_PRELOAD": str(path)}
    result = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert result.stdout.splitlines()[2] == f"the loader's search: {path}"


@pytest.mark.parametrize(
    ("made", "hint"),
    [
        ("etc/NIXOS", 'set hardware.graphics.enable = true and services.xserver.videoDrivers = [ "nvidia" ] in NixOS'),
        ("usr/lib/wsl/lib", "install NVIDIA's driver in Windows, not in WSL, or set PJRT_DEVICE=CPU"),
        ("etc/debian_version", "install NVIDIA's driver, or set PJRT_DEVICE=CPU"),
    ],
)
def test_hint_fits_the_machine(tmp_path, made, hint):
    (tmp_path / made).mkdir(parents=True)
    assert driver.install_hint(str(tmp_path)).startswith(hint)
