"""`devtool lock` in a repository that `devtool init` wrote: the real uv, with a folder of tiny wheels as its index."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devtool.locks.index import Index
from tests.devtool.locks.test_locks import nix_view
from tests.devtool.scaffold.test_init import environment, made
from tests.small_tree import write_wheel


class Own:
    """A repository from `devtool init`, and an index.

    Attributes:
        root: the repository.
        index: the index, with the packages alpha, beta and, for Python 3.11 alone, gamma.
    """

    def __init__(self, folder: Path):
        self.root, self.index = made(folder, "my-kernels"), Index(folder)
        for name in ("beta", "gamma"):
            self.index.wheel(name)
        self.index.wheel("alpha", needs=["gamma; python_version < '3.12'"])

    def write(self, **lists: str) -> None:
        (self.root / "requirements").mkdir(exist_ok=True)
        for name, text in lists.items():
            (self.root / f"requirements/{name}.in").write_text(text)

    def text(self, name: str) -> str:
        return (self.root / f"requirements/{name}.txt").read_text()

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-P", "-m", "devtool", "lock", *arguments]
        env = self.index.environment(environment()) | changes
        return subprocess.run(command, cwd=self.root / "kernels", env=env, capture_output=True, text=True, check=False)

    def lock(self, *arguments: str, **changes: str) -> list[str]:
        """The files that `devtool lock` changed, without requirements/."""
        done = self.run(*arguments, **changes)
        assert done.returncode == 0, done.stderr
        return [line.removeprefix("requirements/") for line in done.stdout.splitlines()]

    def fails(self, *arguments: str, **changes: str) -> str:
        """The errors of `devtool lock`, which must have changed nothing."""
        before = {path: path.read_bytes() for path in (self.root / "requirements").glob("*")}
        done = self.run(*arguments, **changes)
        assert (done.returncode, done.stdout) == (1, "") and "Traceback" not in done.stderr, done.stderr
        assert {path: path.read_bytes() for path in (self.root / "requirements").glob("*")} == before
        return done.stderr

    def settings(self, text: str) -> None:
        with (self.root / "pyproject.toml").open("a") as file:
            file.write(f"\n[tool.devtool.lock]\n{text}\n")


@pytest.fixture
def own(tmp_path) -> Own:
    return Own(tmp_path)


def test_each_list_gets_a_lock_that_pip_takes(own, tmp_path):
    """The list `a` waits for the lock of `z`; `part` is a part of both."""
    own.index.wheel("beta", "2.0")
    own.write(z="-r part.in\nbeta==1.0\n", a="-c z.txt\n-r part.in\nbeta\n", part="alpha\n")
    assert own.lock() == ["z.txt", "a.txt"]
    assert not (own.root / "nix").exists()
    for name in ("a", "z"):
        versions = re.findall(r"^(\S+==\S+)(?: ; (.*))? \\", own.text(name), re.MULTILINE)
        assert versions == [("alpha==1.0", ""), ("beta==1.0", ""), ("gamma==1.0", "python_full_version < '3.12'")]
        assert own.text(name).count("--hash=sha256:") == 3 and "devtool lock" in own.text(name)
        assert str(tmp_path) not in own.text(name)
    links = [f"--find-links={folder}" for folder in own.index.wheels.iterdir()]
    options = ("--require-hashes", "--no-index", "--quiet", "--target", tmp_path / "site", *links)
    pip = [sys.executable, "-m", "pip", "install", *options, "-r", own.root / "requirements/a.txt"]
    subprocess.run(pip, check=True)
    assert {path.stem for path in (tmp_path / "site").glob("*.py")} >= {"alpha", "beta"}


def test_locked_versions_stay_until_an_upgrade(own):
    own.write(dev="alpha\n")
    assert own.lock() == ["dev.txt"]
    own.index.wheel("alpha", "2.0")
    assert own.lock() == [] and own.lock("--check") == []
    message = "lock: --check: expected nothing to change, got changes in requirements/dev.txt"
    assert own.fails("--upgrade", "--check").endswith(f"{message}\n\nhint: devtool lock --upgrade\n")
    assert own.lock("--upgrade") == ["dev.txt"] and "alpha==2.0" in own.text("dev")
    own.write(dev="alpha<2\n")
    assert own.fails("--check").endswith(f"{message}\n\nhint: devtool lock\n")


@pytest.mark.parametrize("folder", [False, True])
def test_repository_without_lists_is_told_how_to_begin(own, folder):
    if folder:
        (own.root / "requirements").mkdir()
    where = own.root / "requirements"
    hint = f"hint: write what to lock, such as: mkdir -p {where} && echo numpy > {where}/dev.in"
    assert own.fails() == f"lock: requirements: expected lists, *.in, in {where}, got none\n\n{hint}\n"


@pytest.mark.parametrize("asked", ["pyxla[devtool]", "pyxla>=7", "theirs"])
def test_pyxla_that_is_in_no_index_is_told_apart(own, asked):
    own.index.wheel("theirs", needs=["pyxla"])
    if asked == "pyxla>=7":
        own.index.wheel("pyxla", "0.1.0")
    own.write(dev=f"{asked}\n")
    errors = own.fails(UV_OFFLINE="0")
    got = "no pyxla of this version in the package index (see above)"
    message = f"lock: requirements/dev.in: expected uv to resolve it, got {got}"
    assert message in errors and errors.endswith("-w ~/wheels .), then UV_FIND_LINKS=~/wheels devtool lock\n")


def test_pyxla_that_uv_may_not_ask_for_is_no_missing_one(own):
    own.index.wheel("theirs", needs=["pyxla"])
    own.write(dev="theirs\n")
    assert "got no connection to the package index (see above)\n\nhint: check the network" in own.fails(UV_OFFLINE="1")


def test_pyxla_in_a_folder_is_locked_by_its_hash(own, tmp_path):
    """As the hint says; the folder's path does not get into the lock."""
    line = write_wheel(tmp_path / "made", "pyxla", "0.1.0", needs=["beta"])
    own.write(dev="pyxla>=0.1.0\n")
    assert own.lock(UV_FIND_LINKS=str(tmp_path / "made")) == ["dev.txt"]
    digest = re.search(r"sha256:\w+", line)[0]
    assert f"pyxla==0.1.0 \\\n    --hash={digest}" in own.text("dev") and "beta==1.0" in own.text("dev")
    assert str(tmp_path) not in own.text("dev")


def test_package_without_a_hash_is_refused(own):
    own.index.wheel("pyxla", "0.1.0")
    wheel = own.index.wheels / "beta/beta-1.0-py3-none-any.whl"
    for line, name in ((f"beta @ {wheel.as_uri()}", "beta"), (f"-e {own.root}", f"-e {own.root}")):
        own.write(dev=f"{line}\n")
        errors = own.fails(UV_OFFLINE="0")
        assert f"lock: {name}: expected a version, got " in errors, errors
        assert errors.endswith("\n\nhint: name a version of it in requirements/*.in, not an address or a folder, which "
                               "has no hash\n")  # fmt: skip


def test_settings_leave_packages_out_and_name_a_file_for_nix(own):
    own.settings('nix = "wheels/nix.json"\nleave-out.gpu = ["beta"]')
    own.write(cpu="alpha\nbeta\n", gpu="-r cpu.in\n-c cpu.txt\n")
    assert own.lock() == ["cpu.txt", "gpu.txt", "wheels/nix.json"]
    assert "beta==" in own.text("cpu") and "beta==" not in own.text("gpu")
    (own.root / "nix").mkdir()
    (own.root / "wheels/nix.json").rename(own.root / "nix/wheels.json")
    view = nix_view(own.root)["environments"]["x86_64-linux"]
    assert view["3.12"]["gpu"].keys() == {"alpha"} and view["3.11"]["gpu"].keys() == {"alpha", "gamma"}


def test_a_set_without_nix_is_locked_for_pip_alone(own):
    own.settings('nix = "nix/wheels.json"\nwithout-nix = ["gpu"]')
    own.write(cpu="alpha\n", gpu="beta\n")
    assert own.lock() == ["cpu.txt", "gpu.txt", "nix/wheels.json"]
    assert "beta==" in own.text("gpu")
    assert list(nix_view(own.root)["environments"]["x86_64-linux"]["3.12"]) == ["cpu"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'leave-ou.gpu = ["x"]',
            "lock: expected a table with leave-out, nix and without-nix, got {'leave-ou': {'gpu': ['x']}}",
        ),
        ('leave-out.gpu = "x"', "lock.leave-out: expected a list of packages for each set, got {'gpu': 'x'}"),
        ("nix = true", "lock.nix: expected a path from the root, got True"),
        ('without-nix = "gpu"', "lock.without-nix: expected a list of sets, got 'gpu'"),
    ],
)
def test_settings_that_say_nothing_are_refused(own, text, message):
    own.settings(text)
    own.write(dev="alpha\n")
    assert f"lock: tool.devtool.{message}\n\nhint: " in own.fails()


def test_lists_that_wait_for_each_other_are_refused(own):
    own.write(a="-c b.txt\nalpha\n", b="-r c.in\n", c="-c a.txt\nbeta\n")
    errors = own.fails()
    assert re.match(r"lock: requirements: expected lists of which one needs no lock of another, got \w\.in -> ", errors)
    assert errors.endswith("\n\nhint: remove one of their lines -c\n")


def test_lock_is_for_the_pythons_that_the_repository_allows(own):
    own.write(dev="alpha\n")
    path, asked = own.root / "pyproject.toml", 'requires-python = ">=3.11"'
    assert asked in path.read_text()
    path.write_text(path.read_text().replace(asked, 'requires-python = ">=3.12"'))
    assert own.lock() == ["dev.txt"] and "gamma" not in own.text("dev")
    path.write_text(path.read_text().replace(">=3.12", ">=3.13"))
    message = "lock: requires-python: expected one that allows Python 3.11 or 3.12, got >=3.13"
    assert own.fails() == f'{message}\n\nhint: requires-python = ">=3.11" in pyproject.toml\n'
