"""`devtool lock` in a copy of the checkout: the real uv, with a folder of tiny wheels as its index."""

import json
import os
import random
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from tests import devtool_tree
from tests.devtool.locks.index import Index
from tests.devtool.locks.test_locks import MACHINES, PYTHONS, nix_view, platforms
from tests.devtool.locks.test_wheels import TAGS
from tests.small_tree import mounted

VIEWS = ["requirements/cpu.txt", "requirements/dev.txt", "requirements/cuda13.txt", "nix/wheels.json"]
# The sets that each agrees with, as in requirements/ of this checkout.
DEV, CUDA = "-c cpu.txt\n", "-c cpu.txt\n-c dev.txt\n"
ELSEWHERE = ["winonly; sys_platform == 'win32'"]


class Tree(devtool_tree.Tree):
    """A checkout whose lists name tiny wheels. `delta` is compiled; `winonly` is needed elsewhere."""

    def __init__(self, root: Path):
        super().__init__(root)
        self._index = Index(root)
        self.wheels, self.wheel = self._index.wheels, self._index.wheel
        self.write("cpu", "alpha")
        self.write("dev", f"{DEV}delta")
        self.write("cuda13", f"{CUDA}-r cpu.in\ngamma")
        self.wheel("alpha", needs=ELSEWHERE)
        for name in ("gamma", "winonly"):
            self.wheel(name)
        for tag in ("cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_28_x86_64"):
            self.wheel("delta", tag=tag)
        self.wheel("delta", tag="cp311-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64")

    def write(self, name: str, text: str) -> None:
        path = self.root / f"requirements/{name}.in"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")

    def environment(self, **changes: str) -> dict[str, str]:
        return self._index.environment(super().environment()) | changes

    def lock(self, *arguments: str) -> list[str]:
        """The output of `devtool lock`: the files that it changed."""
        done = self.run("lock", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def fails(self, *arguments: str, **changes: str) -> str:
        """The errors of `devtool lock`, which must have changed nothing."""
        before = self.files()
        done = self.run("lock", *arguments, **changes)
        assert (done.returncode, done.stdout) == (1, "") and "Traceback" not in done.stderr, done.stderr
        assert self.files() == before
        return done.stderr

    def files(self) -> dict[str, tuple[bytes, int]]:
        paths = [*(self.root / "requirements").iterdir(), *(self.root / "nix").glob("*")]
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@pytest.fixture
def tree(tmp_path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def locked(tree) -> Tree:
    assert tree.lock() == VIEWS
    return tree


def test_first_lock_writes_both_views(locked):
    view = nix_view(locked.root)
    alpha, gamma = "alpha-1.0-py3-none-any.whl", "gamma-1.0-py3-none-any.whl"
    for machine in MACHINES:
        for python in PYTHONS:
            delta = "cp311-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64"
            if machine == "x86_64":
                delta = "cp{0}-cp{0}-manylinux_2_28_x86_64".format(python.replace(".", ""))
            assert view["environments"][f"{machine}-linux"][python] == {
                "cpu": {"alpha": alpha},
                "cuda13": {"alpha": alpha, "gamma": gamma},
                "dev": {"delta": f"delta-1.0-{delta}.whl"},
            }
    assert len(view["hashes"]) == 5
    assert (locked.root / "nix/wheels.json").read_text() == json.dumps(view, indent=1, sort_keys=True) + "\n"
    lock = (locked.root / "requirements/cuda13.txt").read_text()
    assert "devtool lock" in lock and "winonly==1.0 ; sys_platform == 'win32'" in lock
    assert "    # via -r cpu.in\n" in (locked.root / "requirements/cpu.txt").read_text()
    assert str(locked.wheels) not in "".join((locked.root / name).read_text() for name in VIEWS)


def test_sets_agree_on_what_they_share(tree):
    """The sets are installed together: a version required by one applies to all, even if newer ones exist."""
    for name in ("alpha", "beta", "gamma"):
        tree.wheel(name, "1.0")
        tree.wheel(name, "2.0")
    tree.write("cpu", "alpha==1.0\nbeta==1.0")
    tree.write("dev", f"{DEV}alpha\ngamma==1.0")
    tree.write("cuda13", f"{CUDA}alpha\nbeta\ngamma")
    tree.lock()
    sets = nix_view(tree.root)["environments"]["x86_64-linux"]["3.11"]
    assert {name: list(wheels) for name, wheels in sets.items()} == {
        "cpu": ["alpha", "beta"], "cuda13": ["alpha", "beta", "gamma"], "dev": ["alpha", "gamma"],
    }  # fmt: skip
    assert all("-1.0-" in file for wheels in sets.values() for file in wheels.values())


def test_cuda_13_leaves_out_what_has_the_same_files(tree):
    for name in ("nvidia_cudnn_cu12", "nvidia_nccl_cu12", "nvidia_cufft_cu12"):
        tree.wheel(name)
    torch_s = {"nvidia-cudnn-cu12", "nvidia-nccl-cu12"}
    tree.write("cpu", "nvidia-cudnn-cu12\nnvidia-nccl-cu12\nnvidia-cufft-cu12")
    tree.lock()
    sets = nix_view(tree.root)["environments"]["x86_64-linux"]["3.11"]
    assert sets["cpu"].keys() == torch_s | {"nvidia-cufft-cu12"}
    assert sets["cuda13"].keys() == {"nvidia-cufft-cu12", "gamma"}


def test_package_of_which_only_headers_are_used_is_locked_alone(tree):
    """requirements/uv.toml is read in addition to the user's own settings."""
    tree.wheel("delta", "2.0", needs=["gamma"])
    tree.write("dev", f"{DEV}delta==2.0")
    settings = tree.root / "requirements/uv.toml"
    settings.write_text('[[dependency-metadata]]\nname = "delta"\nversion = "2.0"\nrequires-dist = []\n')
    reads_settings = {"UV_NO_CONFIG": "0", "XDG_CONFIG_HOME": str(tree.root)}
    for settings_are_there, packages in ((True, {"delta"}), (False, {"delta", "gamma"})):
        if not settings_are_there:
            settings.unlink()
        done = tree.run("lock", **reads_settings)
        assert done.returncode == 0, done.stderr
        for sets in nix_view(tree.root)["environments"]["x86_64-linux"].values():
            assert set(sets["dev"]) == packages


def test_changed_list_changes_both_views(locked):
    locked.wheel("alpha", "2.0")
    locked.write("cpu", "alpha==2.0")
    assert locked.lock() == ["requirements/cpu.txt", "requirements/cuda13.txt", "nix/wheels.json"]
    assert "alpha==2.0" in (locked.root / "requirements/cuda13.txt").read_text()
    for system in nix_view(locked.root)["environments"].values():
        assert all(sets["cuda13"]["alpha"] == "alpha-2.0-py3-none-any.whl" for sets in system.values())


def test_unchanged_lists_change_nothing(locked):
    """This holds also when there are newer versions, and more files of a locked one."""
    before = locked.files()
    locked.wheel("alpha", "2.0")
    locked.wheel("alpha", tag="cp311-cp311-manylinux_2_28_x86_64", needs=ELSEWHERE)
    assert locked.lock() == [] and locked.lock("--check") == []
    assert locked.files() == before


def test_upgrade_takes_newer_versions(locked):
    locked.wheel("delta", "2.0")
    assert locked.fails("--upgrade", "--check").endswith("\n\nhint: devtool lock --upgrade\n")
    assert locked.lock("--upgrade") == ["requirements/dev.txt", "nix/wheels.json"]
    assert nix_view(locked.root)["environments"]["x86_64-linux"]["3.12"]["dev"] == {
        "delta": "delta-2.0-py3-none-any.whl"
    }


def test_check_names_what_would_change_and_changes_nothing(locked):
    locked.wheel("delta", "2.0")
    locked.write("dev", f"{DEV}delta>1")
    errors = locked.fails("--check")
    message = "lock: --check: expected nothing to change, got changes in requirements/dev.txt, nix/wheels.json"
    assert errors.endswith(f"{message}\n\nhint: devtool lock\n")


def test_check_sees_a_nix_view_of_its_own(locked):
    path = locked.root / "nix/wheels.json"
    path.write_text(path.read_text().replace("gamma-1.0", "gamma-1.1"))
    assert "got changes in nix/wheels.json\n" in locked.fails("--check")


def test_lists_without_a_solution_leave_all_as_it_was(locked):
    """The first set has a solution, the last one has none."""
    locked.wheel("alpha", "2.0")
    locked.write("cpu", "alpha==2.0")
    locked.write("cuda13", f"{CUDA}-r cpu.in\ngamma==7")
    errors = locked.fails()
    message = "lock: requirements/cuda13.in: expected uv to resolve it, got no solution (see above)"
    assert errors.index("gamma==7") < errors.index(message)
    assert errors.endswith(f"{message}\n\nhint: change the versions in the lists; nothing was changed\n")


def test_without_a_network_it_says_so(locked):
    # Nothing listens on port 9 (discard).
    index = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    for offline in ("0", "1"):
        errors = locked.fails(UV_OFFLINE=offline, **index)
        message = "lock: requirements/cpu.in: expected uv to resolve it, got no connection to the package index"
        assert f"{message} (see above)\n\nhint: check the network" in errors


def test_list_that_uv_cannot_read_is_named(locked):
    locked.write("dev", f"{DEV}delta ==")
    errors = locked.fails()
    assert "lock: requirements/dev.in: expected uv to resolve it, got exit status 2 (see above)" in errors


def test_package_without_a_wheel_is_named(locked):
    locked.wheel("gamma", "2.0", tag="cp311-cp311-manylinux_2_36_x86_64.manylinux_2_35_x86_64")
    locked.write("cuda13", f"{CUDA}-r cpu.in\ngamma==2.0")
    message = "lock: cuda13: expected a wheel of gamma 2.0 for Python 3.12 on x86_64-linux, got none"
    assert f"{message}\n\nhint: name another version of gamma" in locked.fails()


def test_package_without_a_wheel_on_the_other_system_is_left_out(locked):
    for tag in ("cp311-cp311-manylinux1_x86_64", "cp312-cp312-manylinux2010_x86_64"):
        locked.wheel("gamma", "2.0", tag=tag)
    locked.write("cuda13", f"{CUDA}-r cpu.in\ngamma==2.0")
    locked.lock()
    environments = nix_view(locked.root)["environments"]
    assert environments["x86_64-linux"]["3.11"]["cuda13"]["gamma"] == "gamma-2.0-cp311-cp311-manylinux1_x86_64.whl"
    assert environments["aarch64-linux"]["3.11"]["cuda13"].keys() == {"alpha"}


def test_package_by_address_is_refused(locked):
    wheel = locked.wheels / "gamma/gamma-1.0-py3-none-any.whl"
    locked.write("dev", f"{DEV}delta\ngamma @ {wheel.as_uri()}")
    assert "lock: gamma: expected a version, got gamma @ file:" in locked.fails()


@pytest.mark.parametrize(
    ("flags", "size", "message"),
    [(1, "1m", "lock: the folder is read-only ("), (0, "4k", "lock: the disk is full (")],
    ids=["read-only", "full"],
)
def test_bad_disk_leaves_all_as_it_was(tree, flags, size, message):
    """The disk of the last file is full: the earlier files could be replaced, but are not."""
    (tree.root / "nix").mkdir()
    with mounted(tree.root / "nix", f"size={size}", flags):
        if size == "4k":
            (tree.root / "nix/filler").write_bytes(b"x" * 4096)
        assert message in tree.fails()


def test_without_uv_it_says_so(tree):
    """It is run by the Python that made .venv, which has no uv."""
    command = [sys._base_executable, *tree.command("lock")[1:]]
    environment = tree.environment(PATH="")
    environment["PYTHONPATH"] += os.pathsep + sysconfig.get_path("purelib")
    done = subprocess.run(command, cwd=tree.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"lock: uv: expected it beside {command[0]} or on PATH, got none\n\nhint: pip install uv" in done.stderr


@pytest.mark.parametrize("python", PYTHONS)
def test_wheels_are_those_that_pip_takes(tree, python):
    """Forty packages, each with some of the known tags; pip itself chooses among their files."""
    chance = random.Random(0)
    names = [f"package{number}" for number in range(40)]
    for name in names:
        for tag in {"py3-none-any", *chance.sample(TAGS, chance.randint(0, 6))}:
            tree.wheel(name, tag=tag)
    tree.write("cpu", "\n".join(names))
    tree.lock()
    wheels = nix_view(tree.root)["environments"]["x86_64-linux"][python]["cpu"]
    taken, links = tree.root / "taken", [f"--find-links={tree.wheels / name}" for name in names]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-index", "--no-deps", "--only-binary=:all:"),
        *("--disable-pip-version-check", f"--dest={taken}", *links),
        *(f"--python-version={python}", "--implementation=cp"),
        *(f"--platform={platform}" for platform in platforms("x86_64")),
        *names,
    ]
    subprocess.run(command, check=True, env=tree.environment())
    assert sorted(wheels.values()) == sorted(path.name for path in taken.iterdir())
    assert len({parse_wheel_filename(file)[3] for file in wheels.values()}) > 5
