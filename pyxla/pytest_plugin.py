"""pytest plugin of `devtool test` (`-p pyxla.pytest_plugin`): XLA dumps its modules, the checks leave records."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

_NO_PARAMETERS = SimpleNamespace(params={})


def pytest_addoption(parser) -> None:
    group = parser.getgroup("pyxla")
    group.addoption("--device", default="cpu", choices=["cpu", "cuda"], help="XLA device that the op tests run on")
    group.addoption("--raw", action="store_true", help="only check_raw: the handlers alone, without XLA")
    group.addoption("--pyxla-records", metavar="FILE", help="write the records of the checks to FILE as JSON")


def pytest_configure(config) -> None:
    os.environ["PJRT_DEVICE"] = config.getoption("--device").upper()
    from pyxla import hlo

    # A worker of pytest-xdist has its parent's XLA_FLAGS: in one folder each would see the others' modules.
    if hlo.dump_folder() is None or hasattr(config, "workerinput"):
        config.pyxla_dump = tempfile.TemporaryDirectory(prefix="pyxla-hlo-")
        hlo.dump_to(Path(config.pyxla_dump.name))


def pytest_collection_modifyitems(config, items) -> None:
    if config.getoption("--raw"):
        from pyxla.testing import check_raw

        kept = [i for i in items if check_raw in getattr(i, "callspec", _NO_PARAMETERS).params.values()]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def pytest_runtest_setup() -> None:
    """Takes off what torch 2.8 leaves behind in a backend that is used again and again.

    Each torch.compile(backend="openxla") wraps the backend's compiler of backward passes once more. After some hundreds
    in one process, which only tests come to, compiling a backward pass ends in a RecursionError.
    """
    backend = sys.modules.get("torch._dynamo.backends.torchxla")
    if backend is not None:
        backend.openxla.kwargs.pop("bw_compiler", None)


def pytest_sessionfinish(session) -> None:
    path = session.config.getoption("--pyxla-records")
    if path:
        from pyxla.testing.op_checks import RECORDS

        Path(path).write_text(json.dumps({"device": _device(), "checks": RECORDS}))


def _device() -> dict[str, str]:
    """Kind and name of the device that the checks ran on."""
    if os.environ["PJRT_DEVICE"] == "CUDA":
        from pyxla.pjrt.cuda_plugin import gpus

        return {"kind": "cuda", "name": gpus()[0].name}
    from pyxla.benchmark.host import cpu_name

    return {"kind": "cpu", "name": cpu_name()}
