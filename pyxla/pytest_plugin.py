"""pytest plugin of `devtool test` (`-p pyxla.pytest_plugin`): XLA dumps its modules, and the checks leave records."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyxla.testing.case import Case

# A property of a test's report that holds a record of pyxla.testing; it also arrives from pytest-xdist's workers.
_RECORD = "pyxla_record"
_records: list[dict] = []


def pytest_addoption(parser) -> None:
    group = parser.getgroup("pyxla")
    group.addoption("--device", default="cpu", choices=["cpu", "cuda"], help="XLA device that the op tests run on")
    group.addoption("--raw", action="store_true", help="only check_raw: the handlers alone, without XLA")
    group.addoption("--pyxla-records", metavar="FILE", help="write the records of the checks to FILE as JSON")


def pytest_configure(config) -> None:
    # For ops outside this checkout, whose pytest settings do not name the marker.
    config.addinivalue_line("markers", "slow: devtool test leaves it out, devtool test --all does not")
    os.environ["PJRT_DEVICE"] = config.getoption("--device").upper()
    # A test chooses its implementation itself.
    os.environ.pop("PYXLA_IMPLEMENTATION", None)
    from pyxla import hlo

    # A worker of pytest-xdist has its parent's XLA_FLAGS: in a common folder each would see the others' modules.
    if hlo.dump_folder() is None or hasattr(config, "workerinput"):
        config.pyxla_dump = tempfile.TemporaryDirectory(prefix="pyxla-hlo-")
        hlo.dump_to(Path(config.pyxla_dump.name))


def pytest_pycollect_makemodule(module_path, parent):
    """A test file of an op that could not be imported fails with the exception of that import."""
    if _error_of_import(module_path):
        return _ModuleOfBrokenOp.from_parent(parent, path=module_path)
    return None


def _error_of_import(test_file: Path) -> Exception | None:
    from pyxla.packages import package_of_path
    from pyxla.torch_ops.discovery import FAILED

    folder = test_file.resolve().parent
    package = package_of_path(folder)
    return FAILED.get(package.module(folder.name)) if package else None


class _ModuleOfBrokenOp(pytest.Module):
    def collect(self):
        __tracebackhide__ = True
        folder = self.path.resolve().parent
        error = _error_of_import(self.path)
        traceback = error.__traceback__
        while traceback and folder.parent not in Path(traceback.tb_frame.f_code.co_filename).resolve().parents:
            traceback = traceback.tb_next  # pyxla's and importlib's frames come first
        raise error.with_traceback(traceback)


def pytest_collection_modifyitems(config, items) -> None:
    from pyxla import testing

    checks = [(item, *_check_and_case(item)) for item in items]
    if config.getoption("--device") == "cpu":
        _keep_smoke_cases([(item, case) for item, check, case in checks if check and _is_of_implementation(item)])
        for item, check, case in checks:
            if case and case.cuda_size and check is not testing.check_raw:
                item.add_marker(pytest.mark.slow)
    if config.getoption("--raw"):
        items[:] = [item for item, check, _ in checks if check is testing.check_raw]
        config.hook.pytest_deselected(items=[item for item, check, _ in checks if check is not testing.check_raw])
        return
    seen = set()
    for item, check, case in checks:
        if case is None or check not in testing.CHECKS_OF_A_FORM:
            continue
        others = sorted((name, id(value)) for name, value in item.callspec.params.items() if value is not case)
        form = (item.parent.nodeid, item.originalname, *others, _form(case))
        if form in seen:
            item.add_marker(pytest.mark.slow)
        seen.add(form)


def pytest_runtest_setup() -> None:
    """Makes it possible to compile hundreds of backward passes in one process."""
    if "torch._dynamo.backends.torchxla" in sys.modules:
        from pyxla.torch_xla_patches.backward_compiler import unwrap_backward_compiler

        unwrap_backward_compiler()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    finally:
        # A run that imports no checks has no records.
        if checks := sys.modules.get("pyxla.testing.op_checks"):
            item.user_properties += [(_RECORD, record) for record in checks.RECORDS]
            checks.RECORDS.clear()


def pytest_runtest_logreport(report) -> None:
    if report.when == "call":
        _records.extend(record for name, record in report.user_properties if name == _RECORD)


def pytest_sessionfinish(session) -> None:
    path = session.config.getoption("--pyxla-records")
    if path and not hasattr(session.config, "workerinput"):
        Path(path).write_text(json.dumps({"device": _device(), "checks": _records}))


def _is_of_implementation(item) -> bool:
    return (item.path.parent / "implements").is_file()


def _keep_smoke_cases(items) -> None:
    """In the tests of implementations, marks as slow all but the first case for each dtype of the first tensor.

    On the CPU an implementation's handler is compiled from the op's host code, and the op's tests run all cases.
    """
    smoke: dict[tuple, Case] = {}
    for item, case in items:
        dtype = next(value[0] for _, value in _form(case) if isinstance(value, tuple))
        if smoke.setdefault((item.parent.nodeid, dtype), case) is not case:
            item.add_marker(pytest.mark.slow)


def _check_and_case(item) -> tuple[Callable | None, Case | None]:
    """The check and the case that a test is made of; None for each that it lacks."""
    from pyxla import testing

    values = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
    check = next((value for value in values if any(value is known for known in testing.CHECKS)), None)
    return check, next((value for value in values if isinstance(value, testing.Case)), None)


@functools.cache
def _form(case: Case) -> tuple:
    return case.form()


def _device() -> dict[str, str]:
    """Kind and name of the device that the checks ran on."""
    from pyxla.pjrt.platform import requested_device

    if requested_device() == "CUDA":
        from pyxla.pjrt.cuda_plugin import gpus

        return {"kind": "cuda", "name": gpus()[0].name}
    from pyxla.benchmark.host import cpu_name

    return {"kind": "cpu", "name": cpu_name()}
