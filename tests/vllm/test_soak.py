"""A short soak: no request is lost, none gets another one's tokens, and the server holds nothing after it."""

import asyncio

from tests.vllm.asker import Asker
from tests.vllm.engine import MARKS
from tests.vllm.server import serving
from tests.vllm.soak import ask, options_of_server

pytestmark = MARKS
# Some of each kind; 10,000 by `python -m tests.vllm.soak`.
REQUESTS = 200


def test_many_requests_at_once(folder_of, tmp_path):
    folder = folder_of("llama")
    with serving(folder, tmp_path / "log", *options_of_server(), "--async-scheduling") as server:
        found = asyncio.run(ask(server, folder, REQUESTS))
    assert (found.wrong, found.left) == ([], {})
    assert set(found.ended) == set(Asker.KINDS) and found.ended.total() == REQUESTS
    assert found.preemptions > 0
