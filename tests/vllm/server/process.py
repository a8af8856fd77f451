"""vLLM's server in processes of its own, as a user starts it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.vllm.engine import ENVIRONMENT
from tests.vllm.models import LONGEST

START_S = 120
STOP_S = 30


class Server(NamedTuple):
    """A server that is ready.

    Attributes:
        url: without a path.
        process: its first process; the engine's are below it.
        log: the file with what it prints.
    """

    url: str
    process: subprocess.Popen
    log: Path


@contextmanager
def serving(folder: Path, log: Path, *options: str, **variables: str) -> Iterator[Server]:
    """Serves a model as "tiny" until the block ends.

    Args:
        folder: of the model.
        log: the file for what the server prints.
        options: of `vllm serve`; later ones take precedence.
        variables: of its environment.
    """
    import httpx

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"-P -m vllm.entrypoints.cli.main serve {folder} --served-model-name tiny --dtype float32"
    command += f" --max-model-len {LONGEST} --max-num-seqs 4 --max-num-batched-tokens 32"
    command += f" --kv-cache-memory-bytes 4000000 --host 127.0.0.1 --port {port}"
    environment = os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} | variables
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *command.split(), *options], env=environment, stdout=output, stderr=output
        )
    try:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        while True:
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            try:
                httpx.get(f"{url}/health").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        yield Server(url, process, log)
    finally:
        process.terminate()
        process.wait(STOP_S)
