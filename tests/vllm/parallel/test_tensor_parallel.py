"""One model on several devices of a process: the tests of tests/vllm/parallel/mesh; a server; fused weights."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import linear

import pyxla
from tests.conftest import check_on_devices
from tests.vllm.engine import MARKS, engine, prompts_of
from tests.vllm.models import greedy
from tests.vllm.server.process import serving

pytestmark = MARKS
COUNT = 10


@pytest.mark.slow
def test_on_a_mesh_of_two_devices():
    check_on_devices(2, "tests/vllm/parallel/mesh")


# In each way to sample. As OpenAI's parameters; vLLM's own are in extra_body.
SAMPLED = [
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.0, "seed": 1, "logprobs": 1},
    {"temperature": 0.8, "seed": 2, "extra_body": {"top_k": 20, "min_p": 0.01}},
    {"temperature": 1.2, "seed": 3, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 1.0, "seed": 4, "logit_bias": {"7": 3.0}, "extra_body": {"repetition_penalty": 1.3}},
    {"temperature": 1.0, "seed": 5, "extra_body": {"prompt_logprobs": 2, "bad_words": ["a"]}},
]


def numbers(entries):
    """{token: log probability} of each position, as the server writes it or vLLM has it."""
    return [
        entry
        and {
            int(token): value["logprob"] if isinstance(value, dict) else value.logprob for token, value in entry.items()
        }
        for entry in entries
    ]


@pytest.mark.slow
def test_a_server_answers_as_one_device_does(folder_of, tmp_path):
    """As a user starts it: no variable says how many devices there are."""
    import openai
    from vllm import SamplingParams

    folder, prompts = folder_of("llama"), prompts_of(5, 40, 90, 17, 3, 60)
    asked = list(zip(prompts, SAMPLED, strict=True))
    with (
        serving(folder, tmp_path / "log", "--tensor-parallel-size", "2", "--async-scheduling") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):

        def ask(prompt, options):
            extra = {"return_token_ids": True, "ignore_eos": True, **options.get("extra_body", {})}
            options = {"model": "tiny", "prompt": prompt, "max_tokens": COUNT, **options, "extra_body": extra}
            return client.completions.create(**options).choices[0]

        with ThreadPoolExecutor(len(asked)) as threads:
            answers = list(threads.map(ask, *zip(*asked, strict=True)))
    params = []
    for options in SAMPLED:
        own = options | options.get("extra_body", {})
        own.pop("extra_body", None)
        if "logit_bias" in own:
            own["logit_bias"] = {int(token): value for token, value in own["logit_bias"].items()}
        params.append(SamplingParams(max_tokens=COUNT, ignore_eos=True, **own))
    llm = engine(folder)
    expected = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    assert [answer.token_ids for answer in answers] == [list(output.outputs[0].token_ids) for output in expected]
    for answer, output in zip(answers, expected, strict=True):
        if answer.logprobs:
            own = [
                chosen[token].logprob
                for chosen, token in zip(output.outputs[0].logprobs, answer.token_ids, strict=True)
            ]
            assert answer.logprobs.token_logprobs == pytest.approx(own, abs=1e-4)
    scored, own = numbers(answers[-1].prompt_logprobs), numbers(expected[-1].prompt_logprobs)
    assert len(scored) == len(prompts[-1]) and scored[0] is own[0] is None
    assert scored[1:] == [pytest.approx(entry, abs=1e-4) for entry in own[1:]]


def test_fewer_gpus(monkeypatch):
    from pyxla.vllm import mesh

    monkeypatch.setattr(mesh, "requested_device", lambda: "CUDA")
    monkeypatch.setattr(mesh, "gpus", lambda: ("one",))
    with pytest.raises(pyxla.PyxlaError) as caught:
        mesh.start_mesh(2)
    assert caught.value.message == "vllm: tensor_parallel_size: expected at most 1, the number of visible GPUs, got 2"
    assert mesh.devices() == 1


@pytest.mark.slow
def test_several_engines_each_on_several_devices(folder_of, tmp_path):
    import openai

    folder, prompts = folder_of("llama"), prompts_of(5, 40, 90, 17)
    options = "--data-parallel-size", "2", "--tensor-parallel-size", "2", "--enforce-eager"
    with (
        serving(folder, tmp_path / "log", *options) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        own = {"return_token_ids": True}
        answer = client.completions.create(
            model="tiny", prompt=prompts, max_tokens=COUNT, temperature=0, extra_body=own
        )
    assert [choice.token_ids for choice in answer.choices] == greedy(folder, prompts, COUNT)


def fused(sizes, devices):
    """The outputs of a fused product by device, and the same as a plain tensor."""

    from pyxla.vllm.sharding import Columns, by_device

    numbers = torch.Generator().manual_seed(0)
    weight = torch.randn(sum(sizes), 8, generator=numbers)
    x = torch.randn(3, 8, generator=numbers)
    outputs = linear(x, by_device(weight, sizes, devices)).unflatten(1, (devices, -1))
    return Columns(outputs, sizes), linear(x, weight)


@pytest.mark.parametrize("sizes", [[8, 4, 4], [6, 6, 6]])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, sizes: x.split(sizes, dim=-1),
        lambda x, sizes: torch.split(x, sizes, dim=-1),
        lambda x, sizes: x.split(6, dim=-1),
        lambda x, sizes: x.chunk(3, dim=-1),
        lambda x, sizes: torch.chunk(x, 2, -1),
        lambda x, sizes: [x[..., :5], x[..., x.shape[-1] // 2 :]],
        lambda x, sizes: [x.view(-1), torch.relu(x), torch.ones(3, 1) + x],
    ],
)
def test_whatever_a_model_does_to_a_fused_product(sizes, use):
    by_device, plain = fused(sizes, 2)
    torch.testing.assert_close(list(use(by_device, sizes)), list(use(plain, sizes)))


def test_a_model_that_changes_a_fused_product_in_place():
    by_device, plain = fused([8, 4, 4], 2)
    for x in (by_device, plain):
        x.clamp_(-0.5, 0.5)
    torch.testing.assert_close(list(by_device.split([8, 4, 4], -1)), list(plain.split([8, 4, 4], -1)))


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: torch.ones(3, 4) + x,
        lambda x: x * 0.5,
        lambda x: 0.5 * x,
        lambda x: x / 2,
        lambda x: torch.sigmoid(x) * x,
        lambda x: x.float()[:, :2],
        lambda x: x.add_(1) + x,
    ],
)
def test_whatever_a_model_does_to_a_pending_product(use):
    from pyxla.vllm.sharding import Rows

    numbers = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 8, generator=numbers), torch.randn(4, 8, generator=numbers)
    pending = Rows(x, weight)
    assert pending.is_pending
    torch.testing.assert_close(use(pending), use(linear(x, weight)))
    assert not pending.is_pending


def test_each_device_has_its_part_of_each_product():
    from pyxla.vllm.sharding import by_device

    rows = torch.arange(16)
    assert by_device(rows, [8, 4, 4], 2).tolist() == [0, 1, 2, 3, 8, 9, 12, 13, 4, 5, 6, 7, 10, 11, 14, 15]
