"""A short soak: no request is lost, none gets another one's tokens, and the server holds nothing after it."""

import asyncio
import re

import pytest

from pyxla.vllm.releases import samples_apart
from tests.vllm.engine import MARKS
from tests.vllm.server.asker import Asker
from tests.vllm.server.process import serving
from tests.vllm.server.soak import ask, options_of_server

pytestmark = MARKS
# Some of each kind; 10,000 by `python -m tests.vllm.server.soak`.
REQUESTS = 200


def test_many_requests_at_once(folder_of, tmp_path):
    import openai

    folder = folder_of("llama")
    # A step is launched before the last one's tokens are read: the worker is a third process.
    with serving(folder, tmp_path / "log", *options_of_server(), "--async-scheduling") as server:
        found = asyncio.run(ask(server, folder, REQUESTS))
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            grammar = {"structured_outputs": {"regex": "[0-9]{5}"}}
            request = {"model": "tiny", "prompt": "a", "extra_body": grammar}
            if samples_apart():
                assert re.fullmatch("[0-9]{5}", client.completions.create(**request).choices[0].text)
            else:
                with pytest.raises(
                    openai.BadRequestError, match="structured_outputs: expected none with async schedul"
                ):
                    client.completions.create(**request)
    assert (found.wrong, found.left) == ([], {})
    assert set(found.ended) == set(Asker.KINDS) and found.ended.total() == REQUESTS
    assert found.preemptions > 0
