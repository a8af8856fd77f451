"""`devtool init`: a repository of one's own, in which devtool does what it does in this checkout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.flake import Flake

needs_nix = pytest.mark.skipif(shutil.which("nix") is None, reason="needs nix: apt-get install nix-bin")
CALL = """
import torch, torch_xla, pyxla
x = torch.ones(4, device=torch_xla.device())
for name in {names}:
    namespace, op = name.split("::")
    print(name, getattr(getattr(torch.ops, namespace), op)(x, 2.0).sum().item())
"""


def environment(*sites: Path, **changes: str) -> dict[str, str]:
    """A user's environment in which this checkout's devtool and pyxla are installed, and packages of these sites."""
    dropped = ("LD_PRELOAD", "PYTHONPATH", "PYXLA_IMPLEMENTATION", "PYTEST_ADDOPTS", "XLA_FLAGS")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"PYXLA_CUDA": "off", "PJRT_DEVICE": "CPU", "PYTHONPATH": os.pathsep.join(map(str, sites))} | changes


def run(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-P", "-m", "devtool", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(**changes), capture_output=True, text=True, check=False)


def made(folder: Path, name: str, *options: str) -> Path:
    result = run(folder, "init", name, *options)
    assert result.returncode == 0, result.stderr
    return folder / name


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with its op built."""
    root = made(tmp_path_factory.mktemp("own"), "my-kernels")
    result = run(root, "build")
    assert result.returncode == 0, result.stderr
    return root


def test_repository_passes_its_tests_at_once(repository):
    result = run(repository, "test")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^\d+ passed, 0 failed, 0 skipped", result.stdout, re.MULTILINE)
    assert re.search(r"^scaled +9 +ok +ok", result.stdout, re.MULTILINE)


def test_run_does_no_needless_work(repository):
    """Imports hypothesis, which takes 0.8 s, for tests that take it alone; looks for no garbage when Python ends."""
    path = repository / "kernels/scaled/test_end.py"
    path.write_text(
        "import atexit, gc, sys\n\n\n"
        "def end():\n    print('hypothesis' in sys.modules, gc.get_freeze_count() > len(gc.get_objects()))\n\n\n"
        "def test_end():\n    atexit.register(end)\n"
    )
    result = run(repository, "test", "scaled", "--", "-k", "test_end")
    path.unlink()
    assert result.returncode == 0 and "\nFalse True\n" in result.stdout, result.stdout


def test_op_has_the_repositorys_namespace(repository):
    result = run(repository, "list", "--json")
    (entry,) = [line for line in result.stdout.splitlines() if '"scaled"' in line]
    assert '"my_kernels_scaled"' in entry and '"state": "built"' in entry
    result = run(repository, "hlo", "scaled", "--case", "f32-3x5")
    assert 'custom_call_target="my_kernels_scaled"' in result.stdout, result.stderr


def test_new_op_and_bench_in_the_repository(repository):
    written = run(repository, "new-op", "added", "(Tensor x, Tensor y) -> Tensor")
    assert written.returncode == 0, written.stderr
    assert '"my_kernels_added"' in (repository / "kernels/added/added_ffi.cc").read_text()
    benches = run(repository, "bench", "scaled", "--list", "--device", "cpu")
    assert benches.returncode == 0 and benches.stdout.startswith("scaled\t"), benches.stderr


@pytest.mark.slow
def test_doctor_and_report_in_the_repository(repository, tmp_path):
    (repository / "requirements").mkdir()
    (repository / "requirements/mine.txt").touch()
    found = run(repository, "doctor").stdout
    assert re.search(r"^ *wheels +skipped this repository has no locks (cpu|cuda13)\S* and dev", found, re.MULTILINE)
    assert re.search(r"^ *op scaled +ok ", found, re.MULTILINE) and re.search(
        r"^ *call on CPU +ok ", found, re.MULTILINE
    )
    written = run(repository, "report", "--output", str(tmp_path / "page.html"))
    assert written.returncode == 0, written.stderr
    assert "my_kernels_scaled" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("place", ["kernels/scaled", "build"])
def test_devtool_finds_the_repository_from_below(repository, place):
    assert run(repository / place, "list").returncode == 0


def test_formatter_settings_are_those_of_pyxla(repository):
    assert (repository / ".clang-format").read_text() == (ROOT / ".clang-format").read_text()


def test_nix_is_for_pyxlas_own_checkout(repository):
    result = run(repository, "nix", "build")
    assert result.returncode == 1
    message = f"nix: repository: expected pyxla's own checkout, got {repository}"
    assert result.stderr == f"{message}\n\nhint: cd into a checkout of pyxla for devtool nix\n"


@needs_nix
def test_flake_of_the_repository_evaluates(repository, tmp_path):
    """Against this checkout's flake, with the namespace in the build of the op."""
    ours = Flake(tmp_path / "pyxla")
    mine = tmp_path / "mine"
    shutil.copytree(repository, mine, ignore=shutil.ignore_patterns("build", "dist"))
    path = mine / "flake.nix"
    path.write_text(
        re.sub(r'inputs\.pyxla\.url = ".*"', f'inputs.pyxla.url = "git+file://{ours.root}"', path.read_text())
    )
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=mine, check=True)
    result = ours.nix("eval", "--raw", ".#packages.x86_64-linux.scaled.buildPhase", cwd=mine)
    assert result.returncode == 0, result.stderr
    assert "-DPYXLA_NAMESPACE=my_kernels " in result.stdout


def test_files_follow_the_repositorys_own_rules(repository):
    for tool in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *tool, "--no-cache", "."]
        result = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout


def test_ops_of_several_packages_in_one_process(repository, tmp_path):
    """Two packages have an op of the same name, each in its namespace; pyxla's own ops are there too."""
    other = made(tmp_path, "theirs", "--namespace", "others")
    assert run(other, "build").returncode == 0
    sites = [repository / "build/site", other / "build/site"]
    for order in (sites, sites[::-1]):
        script = CALL.format(names=["my_kernels::scaled", "others::scaled"])
        result = subprocess.run(
            [sys.executable, "-P", "-c", script], env=environment(*order), capture_output=True, text=True, check=False
        )
        assert result.stdout.splitlines() == ["my_kernels::scaled 8.0", "others::scaled 8.0"], result.stderr
    ask = "import torch, pyxla\nprint(torch.ops.xla_gpu.rms_norm)\npyxla.find_op('scaled')"
    result = subprocess.run(
        [sys.executable, "-P", "-c", ask], env=environment(*sites), capture_output=True, text=True, check=False
    )
    assert result.stdout == "xla_gpu.rms_norm\n"
    got = "my_kernels::scaled and others::scaled"
    assert f"scaled: op: expected its namespace too, as several packages have it, got {got}" in result.stderr


def test_preloaded_library_with_an_unmodified_script(repository):
    library = repository / "build/lib/libscaled.so"
    script = "import torch, torch_xla\nfrom pyxla.library.register import registered\nprint(registered())"
    result = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment(repository / "build/site", LD_PRELOAD=str(library)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"('my_kernels_scaled', 'Host'): PosixPath('{library}')" in result.stdout, result.stderr


def test_two_packages_with_one_op(repository, tmp_path):
    other = made(tmp_path, "twin", "--namespace", "my_kernels")
    assert run(other, "build").returncode == 0
    result = subprocess.run(
        [sys.executable, "-P", "-c", "import torch_xla"],
        env=environment(repository / "build/site", other / "build/site"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    message = (
        "my_kernels::scaled: definition: expected an importable scaled.py, got DefinitionError: scaled: op: expected "
    )
    assert f"{message}a name that is free, got one declared by my_kernels in " in result.stderr
    assert "this one is declared by twin in " in result.stderr


@pytest.mark.slow
def test_path_with_spaces_and_umlauts(tmp_path):
    place = tmp_path / "mein Projekt ä"
    place.mkdir()
    root = made(place, "mine")
    written = run(root, "new-op", "added", "(Tensor x, Tensor y) -> Tensor")
    assert written.returncode == 0, written.stderr
    tested = run(root, "test", "scaled")
    assert re.search(r"^\d+ passed, 0 failed, 0 skipped", tested.stdout, re.MULTILINE), tested.stderr
    benched = run(root, "bench", "scaled", "--device", "cpu", "--case", "f32-1024x4096", "--rounds", "2")
    assert "f32-1024x4096" in benched.stdout, benched.stderr
    wheel = run(root, "wheel")
    assert wheel.returncode == 0 and (root / wheel.stdout.strip()).is_file(), wheel.stderr
