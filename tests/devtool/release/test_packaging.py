"""The source archive, the wheel built from it, and the wheel installed without access to the checkout."""

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from pyxla.torch_xla_patches import PAIRS

ROOT = Path(__file__).resolve().parents[3]
OPS = sorted(path.parent.name for path in ROOT.glob("kernels/*/*_ffi.cc") if not (path.parent / "implements").is_file())

# Only torch, torch_xla and the installed package. NaN where the op wrote nothing would fail the comparison.
SCRIPT = """
import sys
import torch
import torch_xla
import pyxla
import pyxla_kernels

for module in (pyxla, pyxla_kernels):
    assert module.__file__.startswith(sys.prefix), module.__file__
a, b = torch.arange(1000.0), torch.linspace(-3.0, 5.0, 1000)
result = torch.ops.xla_gpu.simple_add(a.to("xla"), b.to("xla"), 2.5)
assert "custom-call" in torch_xla._XLAC._get_xla_tensors_hlo([result]), "the op was not lowered to a custom call"
torch.testing.assert_close(result.cpu(), a + 2.5 * b)
for name in sys.argv[1:]:
    assert hasattr(torch.ops.xla_gpu, name), name
print("works")
"""


def run(*command, **options) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source_archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", code, cwd=ROOT)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(source_archive, tmp_path_factory) -> Path:
    """Built from the archive, so that a missing file shows; with host code only, which is what the script calls."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-build-isolation", "--no-deps", "--no-index", "-w", folder)
    environment = {**os.environ, "CMAKE_ARGS": "-DPYXLA_CUDA=OFF"}
    run(sys.executable, "-m", "pip", "wheel", *options, source_archive, env=environment)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def contents(wheel) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"pyxla-0.1.0.dist-info/{name}").decode()


def test_source_archive_holds_what_building_and_testing_takes(source_archive):
    with tarfile.open(source_archive) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run(
        "git", "ls-files", "bin", "devtool", "examples", "kernels", "pyxla", "requirements", "tests", cwd=ROOT
    )
    assert {"LICENSE", "setup.py", *tracked.split()} <= names


@pytest.mark.slow
def test_wheel_fits_every_python_3_of_the_platform(wheel):
    assert re.fullmatch(r"pyxla-0\.1\.0-py3-none-(many)?linux\w*_x86_64\.whl", wheel.name)
    assert "Root-Is-Purelib: false" in metadata(wheel, "WHEEL")


@pytest.mark.slow
def test_wheel_holds_each_op_with_its_library(contents):
    for op in OPS:
        for name in ("__init__.py", f"{op}.py", "cases.py", f"lib{op}.so", f"lib{op}.json"):
            assert f"pyxla_kernels/{op}/{name}" in contents
    families = {path.relative_to(ROOT / "kernels") for path in ROOT.glob("kernels/_[a-z]*/*.py")}
    assert len(families) >= 10 and {f"pyxla_kernels/{path}" for path in families} <= set(contents)
    for path in (ROOT / "kernels").glob("*/implements"):
        folder = path.parent.name
        for name in ("__init__.py", "implements", f"{folder}.py", f"lib{folder}.so", f"lib{folder}.json"):
            assert f"pyxla_kernels/{folder}/{name}" in contents


@pytest.mark.slow
def test_wheel_holds_no_tests_and_no_sources(contents):
    unwanted = re.compile(r"^tests/|/test_[^/]*$|\.(h|cc|cu|cuh|cmake|map)$|CMakeLists|__pycache__")
    # What others build their ops with.
    wanted = ("devtool/scaffold/", "pyxla/include/", "pyxla/cmake/")
    installed = [name for name in contents if not name.startswith(wanted)]
    assert [name for name in installed if unwanted.search(name)] == []
    assert "pyxla/__init__.py" in contents and "devtool/setup_env.py" in contents
    assert "pyxla/nn/attention.py" in contents and not [name for name in contents if name.startswith("examples")]


@pytest.mark.slow
def test_wheel_holds_the_templates_the_headers_and_the_recipe(contents):
    folders = ("devtool/scaffold/", "devtool/report/template/", "devtool/pages/", "pyxla/include/", "pyxla/cmake/")
    paths = [p for folder in folders for p in (ROOT / folder).rglob("*")]  # also those whose names begin with a dot
    found = [p for p in paths if p.is_file() and p.suffix not in (".pyc", ".md")]
    assert {str(path.relative_to(ROOT)) for path in found} <= set(contents)


@pytest.mark.slow
def test_metadata_names_the_entry_points(wheel):
    entry_points = metadata(wheel, "entry_points.txt")
    assert "[torch_xla.plugins]\ncuda = pyxla.autoload:Plugin" in entry_points
    assert "[torch.backends]\npyxla = pyxla_torch_backend:load" in entry_points
    assert "[console_scripts]\ndevtool = devtool.cli:main" in entry_points


@pytest.mark.slow
def test_dependencies_are_the_locked_ones(wheel):
    required = email.message_from_string(metadata(wheel, "METADATA")).get_all("Requires-Dist")
    runtime = {line.replace("_", "-") for line in required if ";" not in line}
    base = (ROOT / "requirements/base.in").read_text().splitlines()
    pairs = [Version(v) for v in PAIRS], [Version(v) for torchs in PAIRS.values() for v in torchs]
    ranges = {f"{name}<={max(v)},>={min(v)}" for name, v in zip(("torch-xla", "torch"), pairs, strict=True)}
    assert runtime == {line for line in base if line and not line.startswith("#")} | ranges
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    # Without their pins: the lock has some for vLLM's sake, an installed devtool takes any.
    dev = {re.split("[=<]", line)[0] for line in (ROOT / "requirements/dev.in").read_text().splitlines()}
    assert {*extras["devtool"], *extras["docs"]} <= dev
    cuda = {line for line in (ROOT / "requirements/cuda.in").read_text().splitlines() if "==" in line}
    after = re.search(r"--force-reinstall (.+)", (ROOT / "docs/guide/publish.md").read_text())[1].split()
    assert set(extras["cuda13"]) == cuda - set(after) and set(after) < cuda


@pytest.mark.slow
def test_installed_wheel_works_without_the_checkout(wheel, tmp_path):
    clean = tmp_path / "clean"
    venv.create(clean, symlinks=True)
    python = clean / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    # The locked wheels of this environment, without another 7 GB. Its .pth files, such as that of the editable
    # install, are not read, so the checkout cannot be imported.
    site = next(clean.glob("lib/python3*/site-packages"))
    (site / "locked.pth").write_text(sysconfig.get_path("purelib"))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")}
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    output = run(python, script, *OPS, cwd=tmp_path, env={**environment, "PJRT_DEVICE": "CPU"})
    assert output.strip() == "works"


def test_locks_are_hashed_and_name_no_host():
    for lock in sorted((ROOT / "requirements").glob("*.txt")):
        text = lock.read_text()
        pins = re.findall(r"^[\w.-]+==\S+", text, re.MULTILINE)
        hashed = re.findall(r"^[\w.-]+==[^\n]*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
        assert len(pins) == len(hashed) > 10, f"{lock.name}: {len(pins)} pins, {len(hashed)} with a hash"
        assert not re.search(r"://|--(extra-)?index|--find-links|^/", text, re.MULTILINE), lock.name


@pytest.mark.parametrize(
    "sets",
    [
        ("cpu", "cuda13", "vllm-torch2.9", "vllm-cuda13-torch2.9", "dev"),
        ("cpu-torch2.8", "cuda13-torch2.8", "vllm", "vllm-cuda13", "dev"),
    ],
)
def test_locks_agree_where_they_overlap(sets):
    pins: dict[str, dict[str, str]] = {}
    for name in sets:
        for package, version in re.findall(r"^([\w.-]+)==(\S+)", (ROOT / f"requirements/{name}.txt").read_text(), re.M):
            pins.setdefault(package, {})[name] = version
    assert {package: found for package, found in pins.items() if len(set(found.values())) > 1} == {}


@pytest.mark.parametrize("name", ["cuda13", "cuda13-torch2.8", "vllm-cuda13", "vllm-cuda13-torch2.9"])
def test_cuda_lock_gives_each_shared_file_one_owner(name):
    """Both wheels of a pair contain libcudnn.so.9 or libnccl.so.2, and the one installed last would win."""
    lock = (ROOT / f"requirements/{name}.txt").read_text()
    for library in ("cudnn", "nccl"):
        assert re.findall(rf"^nvidia-{library}-\w+==", lock, re.MULTILINE) == [f"nvidia-{library}-cu13=="]
