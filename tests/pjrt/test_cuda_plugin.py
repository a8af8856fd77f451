"""How XLA's CUDA device is found, and the error for each missing part. The tests that need a GPU are in kernels/ and
tests/pjrt/test_cuda_device.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyxla.errors import PyxlaError
from pyxla.pjrt import cuda_plugin, proxy
from pyxla.pjrt.cuda_plugin import Plugin
from tests import stand_in_driver
from tests.conftest import ROOT, only_2_8

PLUGIN = Plugin(Path("/plugin.so"), "jax-cuda13-pjrt 0.11.2", 13)
NAMED = Plugin(Path("/plugin.so"), "PYXLA_PJRT_PLUGIN", 13)


def import_torch_xla(**environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PJRT_DEVICE": "CUDA", **environment}
    script = "import torch, torch_xla; print(torch_xla.device())"
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)


def has_gpu() -> bool:
    try:
        return bool(cuda_plugin.gpus())
    except PyxlaError:
        return False


@pytest.mark.skipif(has_gpu(), reason="needs a machine without a GPU")
def test_cuda_without_a_driver_is_a_python_error():
    """The import of torch_xla raises an exception; torch_xla does not abort at its start."""
    result = import_torch_xla()
    assert result.returncode == 1
    assert "pyxla.errors.PyxlaError: CUDA: driver: expected libcuda.so.1, got " in result.stderr
    assert result.stderr.rstrip().endswith("hint: install NVIDIA's driver, or set PJRT_DEVICE=CPU")


@pytest.mark.skipif(not has_gpu(), reason="needs a GPU")
def test_gpu_that_is_not_visible():
    result = import_torch_xla(CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 1
    assert "CUDA: device: expected a GPU, got none with CUDA_VISIBLE_DEVICES=''" in result.stderr


def test_cpu_asks_nothing_of_cuda():
    result = import_torch_xla(PJRT_DEVICE="CPU", PYXLA_PJRT_PLUGIN="/no/such/file")
    assert (result.returncode, result.stdout) == (0, "xla:0\n"), result.stderr


@only_2_8
def test_torch_xla_loads_beside_a_torch_that_sees_a_gpu():
    """torch_xla 2.8.1 then needs c10::cuda::set_device(signed char), which pyxla_torch_backend provides."""
    script = "import torch; torch.cuda.is_available = lambda: True; import torch_xla; print(torch_xla.device())"
    results = {}
    for autoload in ("1", "0"):
        env = {**os.environ, "PJRT_DEVICE": "CPU", "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
        results[autoload] = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
        )
    assert results["1"].stdout == "xla:0\n", results["1"].stderr
    assert "undefined symbol: _ZN3c104cuda10set_deviceEa" in results["0"].stderr


def test_plugin_that_is_named_and_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("PYXLA_PJRT_PLUGIN", str(tmp_path / "none.so"))
    with pytest.raises(PyxlaError, match=r"CUDA: PYXLA_PJRT_PLUGIN: expected a PJRT plugin, got no file at .*none\.so"):
        cuda_plugin.find_plugin.__wrapped__()


def test_plugin_that_is_named(monkeypatch, tmp_path):
    path = tmp_path / "xla_cuda12_plugin.so"
    path.touch()
    monkeypatch.setenv("PYXLA_PJRT_PLUGIN", str(path))
    assert cuda_plugin.find_plugin.__wrapped__() == Plugin(path, "PYXLA_PJRT_PLUGIN", 12)


def wheel(folder: Path, cuda: int, version: str) -> None:
    (folder / f"jax_plugins/xla_cuda{cuda}").mkdir(parents=True)
    (folder / f"jax_plugins/xla_cuda{cuda}/xla_cuda_plugin.so").touch()
    info = folder / f"jax_cuda{cuda}_pjrt-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jax-cuda{cuda}-pjrt\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("installed", "inherited", "want"), [((12,), None, 12), ((13,), None, 13), ((12, 13), None, 13), ((12, 13), 12, 12)]
)
def test_plugin_of_an_installed_wheel(tmp_path, installed, inherited, want):
    """In its own process, because Python reads the installed packages once. The dev lock's package comes last.

    A process whose parent has imported torch_xla inherits a name, of the wheel that the parent took.
    """
    for cuda in installed:
        wheel(tmp_path, cuda, f"0.{cuda}")
    hidden = "none" if 13 in installed else "cuda13"
    script = f"""from pyxla.pjrt import cuda_plugin
real = cuda_plugin.in_package
cuda_plugin.in_package = lambda package, name: None if "{hidden}" in name else real(package, name)
p = cuda_plugin.find_plugin()
print(p.cuda, p.origin, p.path)"""
    # pyxla itself may be on the path, in place of installed.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(":")}
    env.pop("PYXLA_PJRT_PLUGIN", None)
    if inherited:
        env["PYXLA_PJRT_PLUGIN"] = str(tmp_path / f"jax_plugins/xla_cuda{inherited}/xla_cuda_plugin.so")
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    path = tmp_path / f"jax_plugins/xla_cuda{want}/xla_cuda_plugin.so"
    assert result.stdout == f"{want} jax-cuda{want}-pjrt 0.{want} {path}\n"


@pytest.mark.parametrize("version", [(0, 75), (0, 10), (1, 120)])
@pytest.mark.parametrize(
    ("plugin", "hint"),
    [
        (PLUGIN, "pip install jax-cuda13-pjrt==0.11.2"),
        (Plugin(Path("/plugin.so"), "jax-cuda12-pjrt 0.7.0", 12), "pip install jax-cuda12-pjrt==0.11.2"),
        (NAMED, "unset PYXLA_PJRT_PLUGIN, or name that of jax-cuda13-pjrt==0.11.2"),
    ],
)
def test_plugin_with_an_api_that_was_never_tried(version, plugin, hint):
    with pytest.raises(PyxlaError) as raised:
        cuda_plugin.check_api_version(plugin, version)
    assert raised.value.message == (
        "CUDA: plugin: expected PJRT API 0.76 or a newer minor version (tested to 0.116), "
        f"got {plugin.origin} (PJRT API {version[0]}.{version[1]})"
    )
    assert raised.value.hint == hint


@pytest.mark.parametrize("version", [(0, 76), (0, 115), (0, 116), (0, 200)])
def test_plugin_with_an_api_that_fits(version):
    cuda_plugin.check_api_version(PLUGIN, version)


def test_driver_that_is_too_old(monkeypatch):
    monkeypatch.setattr(cuda_plugin, "driver_version", lambda: (12, 8))
    expected = r"CUDA: driver: expected one for CUDA 13, as jax-cuda13-pjrt 0\.11\.2 needs, got CUDA 12\.8"
    with pytest.raises(PyxlaError, match=expected + r"[^$]*hint: update the driver, or install jax-cuda12-pjrt"):
        cuda_plugin.check_driver(PLUGIN)
    cuda_plugin.check_driver(Plugin(PLUGIN.path, "jax-cuda12-pjrt", 12))


@pytest.mark.parametrize(("version", "problem"), [(12080, "rms_norm: CUDA driver: "), (13000, None)])
def test_library_of_a_newer_cuda_than_the_driver(tmp_path, version, problem):
    """A plugin for CUDA 12 starts on a driver for CUDA 12; the ops' libraries have the runtime of CUDA 13."""
    stand_in_driver.driver(tmp_path, version)
    script = """
from pyxla.library.find import find_library
from pyxla.library.register import check_driver
from pyxla.pjrt import cuda_plugin
from devtool.doctor.probes import ops
cuda_plugin.gpus()
found = next(entry["misfit"] for entry in ops("[[9, 0]]") if entry["op"] == "rms_norm")
print(*(found or ["none"]), sep="\\n")
check_driver(find_library("rms_norm"), cuda_plugin.driver_version())
"""
    env = {**os.environ, "PJRT_DEVICE": "CPU", "LD_LIBRARY_PATH": str(tmp_path)}
    result = subprocess.run([sys.executable, "-P", "-c", script], env=env, capture_output=True, text=True, cwd=ROOT)
    if problem is None:
        assert (result.returncode, result.stdout) == (0, "none\n"), result.stderr
        return
    message, hint = result.stdout.splitlines()
    assert message == f"{problem}expected one for CUDA 13, as {ROOT}/build/lib/librms_norm.so needs, got CUDA 12.8"
    assert hint == "update the driver, or CUDACXX=<nvcc of CUDA 12> devtool build rms_norm --clean"
    assert f"LibraryError: {message}" in result.stderr


def test_library_that_is_missing(monkeypatch):
    monkeypatch.setattr(cuda_plugin, "LIBRARIES", {13: (("cu13/lib", "libcufft.so.99"),)})
    with pytest.raises(
        PyxlaError,
        match=r"CUDA: library: expected libcufft\.so\.99, which jax-cuda13-pjrt 0\.11\.2 opens, got libcufft",
    ):
        cuda_plugin.load_libraries.__wrapped__(PLUGIN)


def test_library_of_cuda_12_that_is_missing(monkeypatch):
    """There is no lock for CUDA 12, so the hint names the wheel."""
    monkeypatch.setattr(cuda_plugin, "LIBRARIES", {12: (("cuda_nvrtc/lib", "libnvrtc.so.99"),)})
    with pytest.raises(PyxlaError) as raised:
        cuda_plugin.load_libraries.__wrapped__(Plugin(Path("/plugin.so"), "jax-cuda12-pjrt 0.11.2", 12))
    assert raised.value.message.startswith("CUDA: library: expected libnvrtc.so.99, which jax-cuda12-pjrt 0.11.2 opens")
    assert raised.value.hint == "pip install nvidia-cuda-nvrtc-cu12"


def test_library_without_which_one_gpu_works(monkeypatch):
    monkeypatch.setattr(cuda_plugin, "LIBRARIES", {13: (("nccl/lib", "libno_such_nccl.so.2"),)})
    monkeypatch.setattr(cuda_plugin, "OPTIONAL", {"libno_such_nccl.so.2"})
    assert cuda_plugin.load_libraries.__wrapped__(PLUGIN) == ()


def test_graphs_of_other_versions_lie_apart(monkeypatch, tmp_path):
    """A graph is for one plugin and the kind of GPU that is taken; a file that the user names has no version."""
    names = "NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3"
    monkeypatch.setattr(proxy, "gpus", lambda: tuple(cuda_plugin.Gpu(name, (9, 0), 1 << 36) for name in names))
    monkeypatch.setenv("PYXLA_VISIBLE_DEVICES", "1")
    named = tmp_path / "plugin.so"
    named.write_text("a")
    for plugin in (PLUGIN, Plugin(named, "PYXLA_PJRT_PLUGIN", 13)):
        monkeypatch.setattr(proxy, "find_plugin", lambda plugin=plugin: plugin)
        proxy.keep_graphs(tmp_path / "graphs")
    named.write_text("another")
    proxy.keep_graphs(tmp_path / "graphs")
    proxy.keep_graphs(None)
    first, *others = sorted(folder.name for folder in (tmp_path / "graphs").iterdir())
    assert first.startswith("jax-cuda13-pjrt-0.11.2_torch_xla-") and first.endswith("_NVIDIA-H100-80GB-HBM3")
    assert [name.split("-")[:2] for name in others] == [["plugin", "1"], ["plugin", "7"]]
    with pytest.raises(PyxlaError, match=r"CUDA: folder: expected one for graphs, got .*Not a directory"):
        proxy.keep_graphs(named)


def test_proxy_is_built():
    assert proxy.proxy_path() == ROOT / "build/lib/pyxla_pjrt_proxy.so"


# Peers write to this memory between calls, so it outlives a call: allocated once for each mesh, at its first call.
ALLOCATES = ["kernels/fused_all_reduce_rms_norm/peers.cc"]


def test_no_handler_allocates_device_memory():
    """XLA allocates a workspace: cudaMalloc waits for the device and cannot be captured. ALLOCATES is the exception."""
    files = (path for folder in ("kernels", "pyxla/include") for path in (ROOT / folder).rglob("*.c*"))
    paths = [path for path in files if path.suffix in (".cc", ".cu", ".cuh")]
    assert len(paths) > 40
    assert [str(path.relative_to(ROOT)) for path in paths if "cudaMalloc" in path.read_text()] == ALLOCATES
