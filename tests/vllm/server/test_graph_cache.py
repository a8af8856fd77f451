"""A server that starts again finds its graphs in files."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.vllm.engine import MARKS

pytestmark = MARKS
CODE = """
import json, sys
from pathlib import Path
from pyxla.pjrt.proxy import graphs
from tests.vllm.engine import engine, generate, prompts_of
tokens = generate(engine(Path(sys.argv[1]), "compiled"), prompts_of(5, 40), 8)
print(json.dumps([*graphs(), tokens]))
"""


# What the name of a file is a hash of, in this order (pyxla/pjrt_proxy/graph_cache.cc).
PARTS = ("XLA_FLAGS", "format", "options", "program")


def parts_of(path) -> list[bytes]:
    """A file's parts; each is its size and its bytes, and the first of the file is the key with all of them."""

    def split(data):
        while data:
            size = int.from_bytes(data[:8], "little")
            yield data[8 : 8 + size]
            data = data[8 + size :]

    return list(split(next(split(path.read_bytes()))))


def changes(cache, before) -> list[str]:
    """Of each file that came after `before`: in which parts it differs from the file of these that is most like it."""
    known = [parts_of(path) for path in before]
    found = []
    for path in sorted(files_in(cache) - before):
        own = parts_of(path)
        differ = [
            [name for name, *pair in zip(PARTS, own, other, strict=True) if pair[0] != pair[1]] for other in known
        ]
        found.append(f"{path.name}: {', '.join(min(differ, key=len, default=PARTS))}")
    return found


def files_in(cache) -> set:
    return {path for path in cache.rglob("*") if path.is_file()}


def start(folder, cache, **variables) -> list:
    """How many graphs a fresh process compiles, how many it loads, and its tokens."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "VLLM_XLA_CACHE_PATH": str(cache)} | variables
    command = [sys.executable, "-P", "-c", CODE, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(
    os.environ.get("PJRT_DEVICE") != "CUDA", reason="needs a GPU: devtool test -- tests/vllm --device cuda"
)
def test_second_start_compiles_nothing(folder_of, tmp_path):
    folder = folder_of("llama")
    compiled, loaded, tokens = start(folder, tmp_path)
    # Two buckets, one of them with graphs that sample. Graphs that move data are alike in many places.
    assert compiled > 2
    kept = files_in(tmp_path)
    assert start(folder, tmp_path) == [0, compiled + loaded, tokens], changes(tmp_path, kept)
    assert start(folder, tmp_path, VLLM_DISABLE_COMPILE_CACHE="1") == [compiled + loaded, 0, tokens]


@pytest.mark.skipif(os.environ.get("PJRT_DEVICE") == "CUDA", reason="XLA:CPU alone cannot read graphs back")
def test_nothing_is_kept_on_the_cpu(folder_of, tmp_path):
    start(folder_of("llama"), tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*"))
