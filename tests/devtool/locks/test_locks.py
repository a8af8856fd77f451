"""The locks of this checkout: requirements/*.txt for pip and nix/wheels.json for Nix agree."""

import base64
import json
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from tests.conftest import ROOT

SETS = ["cpu", "cpu-torch2.8", "cuda13", "cuda13-torch2.8", "dev"]
# Locked for pip alone.
WITHOUT_NIX = {"vllm", "vllm-cuda13", "vllm-torch2.9", "vllm-cuda13-torch2.9"}
# Lists that others include.
PARTS = {"base", "cuda", "vllm-build"}
PYTHONS = ["3.11", "3.12"]
MACHINES = ["aarch64", "x86_64"]
each_environment = pytest.mark.parametrize(
    ("machine", "python"), [(machine, python) for machine in MACHINES for python in PYTHONS]
)


def nix_view(root: Path = ROOT) -> dict:
    return json.loads((root / "nix/wheels.json").read_text())


def pip_view(name: str, machine: str, python: str) -> dict[str, tuple[str, set[str]]]:
    """Package -> its version and the hashes of its files, as pip reads them."""
    there = {"platform_machine": machine, "python_version": python, "python_full_version": f"{python}.9"}
    found = {}
    for line in (ROOT / f"requirements/{name}.txt").read_text().replace("\\\n", "").splitlines():
        if "==" not in line or line.lstrip().startswith("#"):
            continue
        requirement = Requirement(line.partition("--hash")[0])
        if requirement.marker is None or requirement.marker.evaluate(there | {"sys_platform": "linux"}):
            version = str(requirement.specifier).removeprefix("==")
            found[canonicalize_name(requirement.name)] = (version, set(re.findall(r"--hash=sha256:(\w+)", line)))
    assert len(found) > 15
    return found


def platforms(machine: str) -> list[str]:
    """The tags that pip accepts on a system with glibc 2.35, the best one first."""
    first, old = (5, {5: "1", 12: "2010", 17: "2014"}) if machine == "x86_64" else (17, {17: "2014"})
    numbers = [name for n in range(35, first - 1, -1) for name in (f"_2_{n}", old.get(n)) if name]
    return [f"manylinux{number}_{machine}" for number in numbers]


def test_sets_are_those_of_the_lists():
    assert {path.stem for path in (ROOT / "requirements").glob("*.in")} == {*SETS, *WITHOUT_NIX, *PARTS}
    environments = nix_view()["environments"]
    assert list(environments) == [f"{machine}-linux" for machine in MACHINES]
    for system in environments.values():
        assert list(system) == PYTHONS and all(list(sets) == SETS for sets in system.values())


@each_environment
@pytest.mark.parametrize("name", SETS)
def test_both_views_name_the_same_files(name, machine, python):
    """Names, versions and hashes agree; on x86-64 every package in pip's view has its wheel in Nix's."""
    view, locked = nix_view(), pip_view(name, machine, python)
    wheels = view["environments"][f"{machine}-linux"][python][name]
    assert wheels.keys() == locked.keys() if machine == "x86_64" else wheels.keys() <= locked.keys()
    for package, file in wheels.items():
        version, hashes = locked[package]
        assert parse_wheel_filename(file)[:2] == (package, Version(version))
        assert base64.b64decode(view["hashes"][file].removeprefix("sha256-")).hex() in hashes


@each_environment
def test_every_wheel_fits_its_environment(machine, python):
    version = tuple(map(int, python.split(".")))
    interpreter = f"cp{version[0]}{version[1]}"
    tags = {
        *cpython_tags(version, [interpreter], platforms(machine)),
        *compatible_tags(version, interpreter, platforms(machine)),
    }
    for wheels in nix_view()["environments"][f"{machine}-linux"][python].values():
        for package, file in wheels.items():
            name, *_, of_file = parse_wheel_filename(file)
            assert name == package and of_file & tags, file


def test_packages_of_other_systems_are_absent():
    x86_64 = nix_view()["environments"]["x86_64-linux"]["3.11"]
    assert "colorama==" in (ROOT / "requirements/dev.txt").read_text() and "colorama" not in x86_64["dev"]
    assert "nvidia-cudnn-cu12" in x86_64["cpu"] and "nvidia-cudnn-cu12" not in x86_64["cuda13"]
    assert "torch-xla" not in nix_view()["environments"]["aarch64-linux"]["3.11"]["cpu"]


def test_nix_view_has_the_hash_of_each_file_and_no_more():
    view = nix_view()
    named = {
        file
        for system in view["environments"].values()
        for sets in system.values()
        for wheels in sets.values()
        for file in wheels.values()
    }
    assert view["hashes"].keys() == named
    assert all(re.fullmatch(r"sha256-[\w+/]{43}=", digest) for digest in view["hashes"].values())


def test_nix_view_is_sorted_and_names_no_host():
    text = (ROOT / "nix/wheels.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"
    assert "://" not in text and "://" not in "".join(path.read_text() for path in (ROOT / "requirements").iterdir())


def lines_of(name: str) -> list[str]:
    """The lines of a list and of those that it includes."""
    lines = (ROOT / f"requirements/{name}.in").read_text().splitlines()
    included = [line.removeprefix("-r ").removesuffix(".in") for line in lines if line.startswith("-r ")]
    return [line for line in lines if not line.startswith(("-r ", "-c "))] + [
        line for n in included for line in lines_of(n)
    ]


@pytest.mark.parametrize("name", SETS)
def test_locks_meet_their_lists(name):
    """Fails if a list was changed without `devtool lock`."""
    locked = pip_view(name, "x86_64", "3.11")
    for line in lines_of(name):
        if line and not line.startswith("#"):
            wanted = Requirement(line)
            assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)][0]), line
