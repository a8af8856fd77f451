"""A repository of one's own with an op of each route, from `devtool init` to a script that knows only torch_xla.

The folder beside this file is the op that wraps headers of another project, from a pinned wheel.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devtool.scaffold.test_init import environment, made, needs_nix, run
from tests.devtool_tree import HAS_NVCC
from tests.flake import Flake

pytestmark = pytest.mark.slow
OURS = Path(__file__).parent
WRAPPING = "flashinfer_silu_and_mul"
OPS = ("blended", WRAPPING, "scaled")
# What a user of the kernels runs; argument: the library that has to be the registered one.
SCRIPT = """
import sys
import torch
import torch_xla

x = torch.randn(33, 352)
device = torch_xla.device()
silu = torch.ops.real_kernels.flashinfer_silu_and_mul(x.to(device))
scaled = torch.ops.real_kernels.scaled(x.to(device), 2.5)
hlo = torch_xla._XLAC._get_xla_tensors_hlo([silu])
assert 'custom_call_target="real_kernels_flashinfer_silu_and_mul"' in hlo, hlo
gate, up = x.double().chunk(2, dim=-1)
torch.testing.assert_close(silu.cpu(), (gate / (1 + torch.exp(-gate)) * up).float())
torch.testing.assert_close(scaled.cpu(), 2.5 * x)
from pyxla.library.register import registered
print(registered()["real_kernels_flashinfer_silu_and_mul", "Host"])
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = made(tmp_path_factory.mktemp("real"), "real-kernels")
    for arguments in (
        ["blended", "(Tensor x, Tensor y) -> Tensor", "--route", "triton"],
        [WRAPPING, "(Tensor x) -> Tensor"],
    ):
        result = run(root, "new-op", *arguments)
        assert result.returncode == 0, result.stderr
    shutil.copytree(OURS / WRAPPING, root / "kernels" / WRAPPING, dirs_exist_ok=True)
    return root


def use(library: Path, *sites: Path) -> None:
    """Runs the script with the library preloaded, in an environment that has these folders and not the repository."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT], env=environment(*sites, LD_PRELOAD=str(library)), cwd="/",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, f"{library}\n"), result.stderr


@pytest.fixture(scope="module")
def site(repository, tmp_path_factory):
    """The wheel with CUDA code where there is nvcc, checked by devtool and installed; a folder for PYTHONPATH."""
    made_wheel = run(repository, "wheel", "--check", PYXLA_CUDA="auto")
    assert made_wheel.returncode == 0, made_wheel.stderr
    folder = tmp_path_factory.mktemp("clean") / "site"
    options = ("--no-deps", "--no-index", "--quiet", "--target", folder)
    wheel = repository / made_wheel.stdout.strip()
    subprocess.run([sys.executable, "-m", "pip", "install", *options, wheel], check=True)
    return folder


def test_all_tests_pass_in_the_repository(repository):
    result = run(repository, "test", "--all")
    assert result.returncode == 0, result.stdout + result.stderr
    for op in OPS:
        assert any(line.split()[:1] == [op] for line in result.stdout.splitlines()), result.stdout


def test_installed_wheel_says_what_it_wraps(site):
    manifest = json.loads((site / f"real_kernels/{WRAPPING}/lib{WRAPPING}.json").read_text())
    if HAS_NVCC:
        assert manifest["wrapped"]["name"] == "FlashInfer" and "90a-real" in manifest["cuda_architectures"]
    assert manifest["namespace"] == "real_kernels"


def test_script_that_knows_torch_xla_alone(site):
    use(site / f"real_kernels/{WRAPPING}/lib{WRAPPING}.so", site)


@needs_nix
def test_same_by_nix(repository, site, tmp_path):
    """The flake's check runs the repository's tests, its shell makes the wheel, its library serves the same script."""
    ours, mine = Flake(tmp_path / "pyxla", whole=True), tmp_path / "mine"
    shutil.copytree(repository, mine, ignore=shutil.ignore_patterns("build", "dist", "__pycache__"))
    flake = mine / "flake.nix"
    flake.write_text(flake.read_text().replace("github:pyxla/pyxla", f"git+file://{ours.root}"))
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=mine, check=True)
    checked = ours.nix("flake", "check", "-L", cwd=mine)
    assert checked.returncode == 0, checked.stderr
    wheel = ours.nix("develop", ".#cpu", "-c", "devtool", "wheel", "--check", cwd=mine)
    assert wheel.returncode == 0 and (mine / wheel.stdout.strip().splitlines()[-1]).is_file(), wheel.stderr
    built = ours.nix("build", "-o", str(tmp_path / "result"), f".#{WRAPPING}", cwd=mine)
    assert built.returncode == 0, built.stderr
    use(tmp_path / f"result/lib/lib{WRAPPING}.so", site)
