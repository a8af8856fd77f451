"""pytest plugin of `devtool test` (`-p pyxla.pytest_plugin`): XLA dumps its modules, the checks leave records."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path


def pytest_addoption(parser) -> None:
    group = parser.getgroup("pyxla")
    group.addoption("--device", default="cpu", choices=["cpu", "cuda"], help="XLA device that the op tests run on")
    group.addoption("--pyxla-records", metavar="FILE", help="write the records of the checks to FILE as JSON")


def pytest_configure(config) -> None:
    os.environ["PJRT_DEVICE"] = config.getoption("--device").upper()
    from pyxla import hlo

    if hlo.dump_folder() is None:
        config.pyxla_dump = tempfile.TemporaryDirectory(prefix="pyxla-hlo-")
        hlo.dump_to(Path(config.pyxla_dump.name))


def pytest_sessionfinish(session) -> None:
    path = session.config.getoption("--pyxla-records")
    if path:
        from pyxla.testing import RECORDS

        Path(path).write_text(json.dumps(RECORDS))
