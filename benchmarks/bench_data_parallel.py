"""Times vLLM with several engines: how many more requests a second they answer than one engine does.

PJRT_DEVICE=CUDA python -m benchmarks.bench_data_parallel FOLDER --option async_scheduling=true

Each engine has a GPU, or a process on XLA's CPU device (--tiny), and as many requests as the single engine has. Each
number of engines gets a fresh process. One JSON object a line, on standard output; the last one has the ratios.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import click

from benchmarks.bench_serving import GENERATED, LLAMA_3_8B, PROMPT, TINY, emit, write_model


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--engines", default="1,2", help="Numbers of engines; the first one is what the others are compared with")
@click.option("--requests", "count", default=1000, help="Requests for each engine, all at once")
@click.option("--rounds", default=2, help="How often; the first round also warms up")
@click.option("--tiny", is_flag=True, help="A small model, to try the benchmark")
@click.option("--option", "options", multiple=True, metavar="NAME=JSON", help="An argument of vLLM's engine")
def main(folder: Path, engines: str, count: int, rounds: int, tiny: bool, options: tuple[str, ...]):
    """Writes the model to FOLDER if it is not there, and times each number of engines."""
    numbers = [int(number) for number in engines.split(",")]
    write_model(folder, LLAMA_3_8B | (TINY if tiny else {}))
    if len(numbers) > 1:
        rates = [best_rate(number) for number in numbers]
        emit("ratio", engines=numbers, requests_per_s=[round(rate, 2) for rate in rates],
             ratio=[round(rate / rates[0], 3) for rate in rates])  # fmt: skip
        return
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    given = {name: json.loads(value) for name, _, value in (option.partition("=") for option in options)}
    defaults = {"dtype": "bfloat16", "skip_tokenizer_init": True, "enable_prefix_caching": False, "seed": 0}
    asyncio.run(measure(folder, numbers[0], count, rounds, 2048 if tiny else 128000, defaults | given))


def best_rate(engines: int) -> float:
    """Requests a second of the best round, measured by a fresh process with this one's arguments."""
    command = [sys.executable, "-m", "benchmarks.bench_data_parallel", *sys.argv[1:], "--engines", str(engines)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    # vLLM's log comes here too.
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"what"')]
    print("\n".join(lines), flush=True)
    rounds = [found for found in map(json.loads, lines) if found["what"] == "requests"]
    return max(found["requests_per_s"] for found in rounds)


async def measure(folder: Path, engines: int, count: int, rounds: int, vocabulary: int, options: dict) -> None:
    """Starts the engines, and sends all requests of a round at once."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    began = time.perf_counter()
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(str(folder), data_parallel_size=engines, **options))
    emit("start", engines=engines, device=os.environ.get("PJRT_DEVICE", "native"), options=options,
         seconds=time.perf_counter() - began)  # fmt: skip
    numbers = random.Random(1234)
    try:
        for round_number in range(rounds):
            prompts = [
                [numbers.randrange(10, vocabulary) for _ in range(numbers.randint(*PROMPT))]
                for _ in range(count * engines)
            ]
            began = time.perf_counter()
            found = await asyncio.gather(
                *(ask(llm, f"{round_number}-{place}", prompt) for place, prompt in enumerate(prompts))
            )
            took = time.perf_counter() - began
            assert found == [GENERATED] * len(prompts)
            emit("requests", engines=engines, requests=len(prompts), seconds=took, requests_per_s=len(prompts) / took)
    finally:
        llm.shutdown()


async def ask(llm, name: str, prompt: list[int]) -> int:
    """How many tokens a request gets."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(temperature=0.0, max_tokens=GENERATED, ignore_eos=True, detokenize=False)
    params.output_kind = RequestOutputKind.FINAL_ONLY
    tokens = 0
    async for output in llm.generate({"prompt_token_ids": prompt}, params, name):
        tokens = len(output.outputs[0].token_ids)
    return tokens


if __name__ == "__main__":
    main()
