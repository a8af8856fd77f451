"""vLLM's server, asked through the client of OpenAI."""

import json
import os
import subprocess
import sys

import pytest

from tests.vllm.engine import ENVIRONMENT, MARKS, prompts_of
from tests.vllm.models import greedy
from tests.vllm.server.process import START_S, serving

pytestmark = MARKS
COUNT = 10


@pytest.fixture(scope="module")
def client(folder_of, tmp_path_factory):
    import openai

    log = tmp_path_factory.mktemp("server") / "log"
    with (
        serving(folder_of("llama"), log) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def test_completions_of_several_prompts(client, folder_of):
    prompts = prompts_of(5, 40, 90, 17, 3, 60)
    answer = client.completions.create(
        model="tiny", prompt=prompts, max_tokens=COUNT, temperature=0, extra_body={"return_token_ids": True}
    )
    expected = greedy(folder_of("llama"), prompts, COUNT)
    assert [choice.token_ids for choice in answer.choices] == expected


def test_a_chat_in_a_stream(client):
    message = [{"role": "user", "content": "hello"}]
    options = {"model": "tiny", "messages": message, "max_tokens": COUNT, "temperature": 0}
    whole = client.chat.completions.create(**options).choices[0].message.content
    parts = [part.choices[0].delta.content or "" for part in client.chat.completions.create(**options, stream=True)]
    assert len(parts) > 2 and "".join(parts) == whole != ""


def test_a_seed_and_logprobs(client):
    options = {"model": "tiny", "prompt": "a", "max_tokens": COUNT, "temperature": 1.0, "logprobs": 2}
    # Else the names are texts, and many bytes have the same.
    options["extra_body"] = {"return_tokens_as_token_ids": True}
    first, again, other = (client.completions.create(**options, seed=seed).choices[0] for seed in (1, 1, 2))
    assert first.text == again.text != other.text
    assert len(first.logprobs.token_logprobs) == len(first.logprobs.top_logprobs) > 1
    for chosen, likeliest in zip(first.logprobs.token_logprobs, first.logprobs.top_logprobs, strict=True):
        assert 2 <= len(likeliest) <= 3 and chosen <= max(likeliest.values()) <= 0


def test_an_answer_by_a_json_schema(client):
    properties = {"name": {"enum": ["Ada", "Grace"]}, "right": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=100,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
    )
    found = json.loads(answer.choices[0].message.content)
    assert found["name"] in properties["name"]["enum"] and found["right"] in (True, False) and len(found) == 2


def test_a_request_that_is_refused(client):
    import openai

    with pytest.raises(openai.BadRequestError, match="vllm: extra_args: expected None"):
        client.completions.create(model="tiny", prompt="a", extra_body={"vllm_xargs": {"a": 1}})
    assert client.completions.create(model="tiny", prompt="a", temperature=0, max_tokens=1).choices


_AFTER_TORCH = """
import sys
import torch
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    # Starts torch's threads.
    torch.rand(2000, 2000).softmax(-1).sum().item()
    llm = LLM(sys.argv[1], dtype="float32", max_model_len=128, max_num_seqs=4, max_num_batched_tokens=8,
              kv_cache_memory_bytes=4000000, enforce_eager=True)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    print(llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)[0].outputs[0].token_ids)
"""


def test_engine_starts_after_torch_has_computed(folder_of, tmp_path):
    """A forked engine would wait for the threads of torch that are not in it."""
    script = tmp_path / "script.py"
    script.write_text(_AFTER_TORCH)
    env = os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    env.pop("VLLM_WORKER_MULTIPROC_METHOD", None)
    folder = folder_of("llama")
    ran = subprocess.run(
        [sys.executable, "-P", script, folder], env=env, capture_output=True, text=True, check=True, timeout=START_S
    )
    assert str(greedy(folder, [[5, 6, 7]], 3)[0]) in ran.stdout.splitlines()
