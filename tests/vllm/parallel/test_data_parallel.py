"""Two engines behind one server: the same tokens as one gives, both have work, and no process is left."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.vllm.engine import MARKS, prompts_of
from tests.vllm.models import greedy
from tests.vllm.server.process import STOP_S, serving

pytestmark = [*MARKS, pytest.mark.slow]
COUNT, ENGINES = 10, 2


def test_two_engines(folder_of, tmp_path):
    import httpx
    import openai
    import psutil

    folder, prompts, log = folder_of("llama"), prompts_of(5, 40, 90, 17, 3, 60), tmp_path / "log"
    with (
        serving(folder, log, "--data-parallel-size", str(ENGINES)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):

        def ask(prompt):
            options = {"max_tokens": COUNT, "temperature": 0, "extra_body": {"return_token_ids": True}}
            return client.completions.create(model="tiny", prompt=prompt, **options).choices[0].token_ids

        with ThreadPoolExecutor(len(prompts)) as threads:
            answers = list(threads.map(ask, prompts))
        # One request at a time: the other engine runs steps without requests.
        alone = [ask(prompt) for prompt in prompts]
        metrics = httpx.get(f"{server.url}/metrics").text
        started = psutil.Process(server.process.pid).children(recursive=True)
    assert answers == alone == greedy(folder, prompts, COUNT)
    ended = r'^vllm:request_success_total\{engine="(\d+)",finished_reason="length".*\} (\S+)'
    counts = dict(re.findall(ended, metrics, re.MULTILINE))
    assert sorted(counts) == ["0", "1"] and sum(map(float, counts.values())) == 2 * len(prompts)
    assert all(float(count) > 0 for count in counts.values()), counts
    assert len(started) >= ENGINES
    assert psutil.wait_procs(started, STOP_S)[1] == []
    assert server.process.returncode == 0 and "Traceback" not in log.read_text(), log.read_text()


def test_an_engine_has_no_part_in_the_others(folder_of):
    """Its worker sees a world of one, in which no layer waits for another engine."""
    from vllm.engine.arg_utils import EngineArgs

    from pyxla.vllm.worker import XlaWorker

    config = EngineArgs(model=str(folder_of("llama")), data_parallel_size=ENGINES).create_engine_config()
    worker = XlaWorker(config, local_rank=0, rank=0, distributed_init_method="")
    assert worker.parallel_config.data_parallel_size == 1 and worker.cache_config is config.cache_config
    assert worker.vllm_config.parallel_config is worker.parallel_config
    assert config.parallel_config.data_parallel_size == ENGINES
