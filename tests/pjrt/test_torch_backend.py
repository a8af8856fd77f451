"""What `import torch` prepares for torch_xla: pyxla/torch_backend."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.conftest import only_2_8

SCRIPT = """
import gc, json, os, pathlib
before = gc.get_threshold(), os.environ.get("TORCH_WARM_POOL")
{imports}
import torch._inductor.async_compile
print(json.dumps({{
    "children": [file.read_text().split() for file in pathlib.Path("/proc/self/task").glob("*/children")],
    "pools": len(torch._inductor.async_compile._pool_set),
    "threads": torch._inductor.async_compile.get_compile_threads(),
    "as before": (gc.get_threshold(), os.environ.get("TORCH_WARM_POOL")) == before,
}}))
"""

with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs triton: without it inductor starts no workers"
)


def seen(imports: str, **environment: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(imports=imports)],
        # More than one, even on a machine with one core.
        env={**os.environ, "PJRT_DEVICE": "CPU", "TORCHINDUCTOR_COMPILE_THREADS": "2", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return result | {"children": [child for children in result["children"] for child in children]}


@pytest.mark.parametrize(
    "imports",
    [
        "import torch, torch_xla",
        "import torch_xla",
        "import torch, importlib.util; importlib.util.find_spec('torch_xla'); import torch_xla",
    ],
)
def test_torch_xla_starts_no_compile_workers(imports):
    assert seen(imports) == {"children": [], "pools": 0, "threads": 2, "as before": True}


@only_2_8
@pytest.mark.slow
@with_triton
def test_what_torch_xla_starts_without_it():
    """If this test fails, torch_xla has fixed it, and the preparation can be removed."""
    assert seen("import torch, torch_xla", TORCH_DEVICE_BACKEND_AUTOLOAD="0")["pools"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("asks", ["", "import importlib.util; assert importlib.util.find_spec('torch_xla');"])
def test_torch_alone_is_left_as_it_is(asks):
    """This holds also if a library checks whether torch_xla is installed."""
    script = (
        f"import gc, os; before = gc.get_threshold(); import torch; {asks}"
        "print(gc.get_threshold() == before, 'TORCH_WARM_POOL' in os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


@pytest.mark.parametrize("device", ["CUDA", "CPU"])
def test_driver_is_loaded_before_torch_searches_for_a_gpu(tmp_path, device):
    """torch keeps what its first search found, also when there is a driver later."""
    (tmp_path / "pyxla/pjrt").mkdir(parents=True)
    (tmp_path / "pyxla/__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "pyxla/pjrt/driver.py").write_text("def load():\n    print('driver')\n    raise OSError('no driver')\n")
    script = "import torch; print('torch')"
    env = {**os.environ, "PJRT_DEVICE": device}
    said = subprocess.check_output([sys.executable, "-c", script], cwd=tmp_path, env=env, text=True)
    assert said == ("driver\ntorch\n" if device == "CUDA" else "torch\n")


@only_2_8
@pytest.mark.slow
@with_triton
def test_a_choice_of_the_user_stays():
    assert seen("import torch, torch_xla", TORCH_WARM_POOL="1")["pools"] == 1


@pytest.mark.slow
def test_an_import_that_fails(tmp_path):
    (tmp_path / "torch_xla.py").write_text("raise ImportError('not here')")
    script = (
        "import gc, os; before = gc.get_threshold(); import torch\n"
        "try: import torch_xla\n"
        "except ImportError as error: print(error, gc.get_threshold() == before, 'TORCH_WARM_POOL' in os.environ)"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "not here True False\n"


@pytest.mark.slow
def test_the_module_has_its_own_loader():
    script = (
        "import torch, torch_xla; print(torch_xla.__loader__ is torch_xla.__spec__.loader, type(torch_xla.__loader__))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True <class '_frozen_importlib_external.SourceFileLoader'>")
