"""Times vLLM on a model of Llama 3 8B's shape with random weights: start, decode steps, many requests, a steady load.

PJRT_DEVICE=CUDA python -m benchmarks.bench_serving FOLDER --option async_scheduling=true \\
    --option 'distributed_executor_backend="uni"'                  vLLM on XLA, through pyxla
python -m benchmarks.bench_serving FOLDER                          vLLM on its own CUDA kernels, the baseline

Newer releases of vLLM launch a step before they read the last one's tokens; 0.11.0 must be asked to.

It needs nothing of pyxla, so that the baseline can be another release of vLLM in an environment of its own. One JSON
object a line, on standard output.
"""

import json
import os
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path

import click

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "torch_dtype": "bfloat16",
}
TINY = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 2048, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
# Sequences of a decode step, and the contexts of the first and the last one.
STEPS = {
    "64x1024": (64, 1024, 1024),
    "64x1024-4096": (64, 1024, 4096),
    "64x4096": (64, 4096, 4096),
    "1x1024": (1, 1024, 1024),
}
WARM, TIMED = 32, 64
# A prompt's tokens, and those that a request generates.
PROMPT, GENERATED = (100, 1000), 100
STAGES = ("start", *STEPS, "requests", "steady")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--stages", default=",".join(STAGES), help="Out of these")
@click.option("--requests", "count", default=1000, help="Requests that come at once")
@click.option("--rate", default=20.0, help="Requests a second of the steady load")
@click.option("--seconds", default=15.0, help="How long the steady load comes")
@click.option("--tiny", is_flag=True, help="A small model, to try the benchmark")
@click.option("--option", "options", multiple=True, metavar="NAME=JSON", help="An argument of vllm.LLM")
def main(folder: Path, stages: str, count: int, rate: float, seconds: float, tiny: bool, options: tuple[str, ...]):
    """Writes the model to FOLDER if it is not there, and runs the stages."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    chosen = stages.split(",")
    write_model(folder, LLAMA_3_8B | (TINY if tiny else {}))
    import vllm

    given = {name: json.loads(value) for name, _, value in (option.partition("=") for option in options)}
    began = time.perf_counter()
    defaults = {"dtype": "bfloat16", "skip_tokenizer_init": True, "enable_prefix_caching": False, "seed": 0}
    llm = vllm.LLM(str(folder), **(defaults | given))
    bench = Bench(llm.llm_engine, 2048 if tiny else 128000)
    settings = llm.llm_engine.vllm_config
    emit("start", vllm=vllm.__version__, device=os.environ.get("PJRT_DEVICE", "native"), options=given,
         seconds=time.perf_counter() - began, max_num_seqs=settings.scheduler_config.max_num_seqs,
         max_num_batched_tokens=settings.scheduler_config.max_num_batched_tokens,
         blocks=settings.cache_config.num_gpu_blocks)  # fmt: skip
    tokens = bench.finish(bench.add(bench.draw([17, 300, 1000]), 24))
    emit("tokens", first=[got[:8] for got in tokens])
    for name in chosen:
        if name in STEPS:
            for _ in range(2):
                emit("step", case=name, **bench.step(*STEPS[name]))
        elif name == "requests":
            for _ in range(2):
                emit("requests", **bench.requests(count))
        elif name == "steady":
            emit("steady", rate=rate, **bench.steady(rate, seconds))


def emit(what: str, **values) -> None:
    """Prints what was measured."""
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}
    print(json.dumps({"what": what, **rounded}), flush=True)


def write_model(folder: Path, config: dict) -> None:
    """Writes a checkpoint of random weights, a file for each layer."""
    if (folder / "config.json").exists():
        return
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    # Drawn once, and each weight is a part of it: drawing each takes a minute.
    block = torch.randn(1 << 24, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()

    def draw(*shape: int) -> torch.Tensor:
        size = torch.Size(shape).numel()
        offset = random.Random(str(shape)).randrange(1 << 20)
        return block.roll(-offset).repeat(-(-size // len(block)))[:size].view(shape)

    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries, keys = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    shapes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    ends = {
        "model.embed_tokens.weight": draw(vocabulary, hidden),
        "lm_head.weight": draw(vocabulary, hidden),
        "model.norm.weight": ones,
    }
    files = dict.fromkeys(ends, "model-ends.safetensors")
    save_file(ends, folder / "model-ends.safetensors")
    for layer in range(config["num_hidden_layers"]):
        weights = {f"{name}.weight": draw(*shape) for name, shape in shapes.items()}
        weights |= {"input_layernorm.weight": ones, "post_attention_layernorm.weight": ones.clone()}
        weights = {f"model.layers.{layer}.{name}": weight for name, weight in weights.items()}
        save_file(weights, folder / f"model-{layer:02}.safetensors")
        files |= dict.fromkeys(weights, f"model-{layer:02}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "config.json").write_text(json.dumps(config))


class Bench:
    """What is measured on an engine in this process.

    Args:
        engine: vLLM's LLMEngine.
        vocabulary: tokens of prompts are below it.
    """

    def __init__(self, engine, vocabulary: int):
        self._engine, self._vocabulary = engine, vocabulary
        self._random, self._added = random.Random(1234), 0
        self._of: dict[str, list[int]] = {}

    def draw(self, lengths: list[int]) -> list[list[int]]:
        """Prompts of random tokens, of these lengths."""
        return [[self._random.randrange(10, self._vocabulary) for _ in range(length)] for length in lengths]

    def add(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """Adds a request for each prompt; the tokens that it gets come into the lists that it returns."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        found = []
        for prompt in prompts:
            params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
            params.output_kind = RequestOutputKind.DELTA
            self._added += 1
            name = f"request-{self._added}"
            found.append([])
            # Newer releases of vLLM give a request a name of their own.
            renamed = self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
            self._of[name] = self._of[renamed or name] = found[-1]
        return found

    def advance(self) -> list[list[int]]:
        """Runs a step; returns the lists that got tokens."""
        grown = []
        for output in self._engine.step():
            new = output.outputs[0].token_ids
            if new:
                self._of[output.request_id].extend(new)
                grown.append(self._of[output.request_id])
        return grown

    def finish(self, requests: list[list[int]]) -> list[list[int]]:
        """Runs steps until nothing is left; returns the tokens."""
        while self._engine.has_unfinished_requests():
            self.advance()
        return requests

    def step(self, sequences: int, first: int, last: int) -> dict:
        """Milliseconds of a decode step; in the middle of those that are timed the contexts are first to last."""
        spread = [number / max(1, sequences - 1) for number in range(sequences)]
        contexts = [first + int((last - first) * part) for part in spread]
        # The first prompts generate tokens while the last ones are read.
        reading = sum(contexts) // self._engine.vllm_config.scheduler_config.max_num_batched_tokens
        ahead = [int(reading * (1 - part)) + WARM + TIMED // 2 for part in spread]
        lengths = [context - tokens for context, tokens in zip(contexts, ahead, strict=True)]
        requests, stamps, middle = self.add(self.draw(lengths), reading + WARM + TIMED + 16), [], 0.0
        while self._engine.has_unfinished_requests():
            grown = self.advance()
            if len(grown) == sequences and min(map(len, requests)) >= WARM and len(stamps) <= TIMED:
                stamps.append(time.perf_counter())
            if len(stamps) == TIMED // 2:
                middle = (sum(lengths) + sum(map(len, requests))) / sequences
        took = [1e3 * (after - before) for before, after in pairwise(stamps)]
        assert len(took) == TIMED, len(took)
        mean = 1e3 * (stamps[-1] - stamps[0]) / TIMED
        return {"context": middle, "ms": mean, "median": statistics.median(took), "each": [round(ms, 2) for ms in took]}

    def requests(self, count: int) -> dict:
        """Seconds of so many requests that come at once, the same ones in every run."""
        self._random.seed(count)
        lengths = [self._random.randint(*PROMPT) for _ in range(count)]
        prompts = self.draw(lengths)
        began = time.perf_counter()
        requests = self.finish(self.add(prompts, GENERATED))
        took = time.perf_counter() - began
        assert all(len(tokens) == GENERATED for tokens in requests)
        return {
            "requests": count,
            "prompt_tokens": sum(lengths),
            "seconds": took,
            "tokens_per_s": count * GENERATED / took,
        }

    def steady(self, rate: float, seconds: float) -> dict:
        """Milliseconds from one token of a request to its next, and to its first, if requests come at a steady rate."""
        arrivals = [number / rate for number in range(int(rate * seconds))]
        began, added, gaps, firsts = time.perf_counter(), 0, [], []
        last: dict[int, float] = {}
        while added < len(arrivals) or self._engine.has_unfinished_requests():
            now = time.perf_counter() - began
            while added < len(arrivals) and arrivals[added] <= now:
                (tokens,) = self.add(self.draw([self._random.randint(*PROMPT)]), GENERATED)
                last[id(tokens)] = arrivals[added]
                added += 1
            grown = self.advance() if self._engine.has_unfinished_requests() else []
            now = time.perf_counter() - began
            for tokens in grown:
                (firsts if len(tokens) == 1 else gaps).append(1e3 * (now - last[id(tokens)]))
                last[id(tokens)] = now
        gap, first = (statistics.quantiles(values, n=100) for values in (gaps, firsts))
        return {"requests": added, "p50": gap[49], "p99": gap[98], "first_p50": first[49], "first_p99": first[98]}


if __name__ == "__main__":
    main()
