"""The proxy in front of a plugin as strict as XLA's."""

import ctypes
import shutil
import subprocess

import pytest

from tests.conftest import ROOT
from tests.pjrt.proxy import PROXY, Proxy


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "plugin.so"
    source = ROOT / "tests/probe/pjrt_plugin.cc"
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", source, "-o", path]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="module")
def proxy(plugin, tmp_path_factory):
    # A copy: with a GPU, the proxy itself already wraps XLA's plugin in this process.
    copy = shutil.copy(PROXY, tmp_path_factory.mktemp("proxy"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYXLA_PJRT_PLUGIN", str(plugin))
        return Proxy(ctypes.CDLL(copy))
