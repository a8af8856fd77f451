"""The state of running requests: seeds, counts and forbidden tokens over steps, rows and slots."""

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as metrics
from hypothesis import given
from hypothesis import strategies as st

from pyxla import ArgumentError
from pyxla.hlo import optimized_modules
from pyxla.hlo.text import input_output_aliases
from pyxla.vllm.sampling import VARIANTS, Level, Sampler, Variant
from tests.vllm.sampling.parameters import Parameters
from tests.vllm.sampling.reference import adjusted
from tests.vllm.sampling.steps import MODES, run, words

VOCAB, ROWS = 32, 4
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))


def new_sampler(mode="direct", slots=8, seed=0):
    return Sampler(VOCAB, slots, torch_xla.device(), seed=seed, mode=mode)


def step(sampler, outputs, names, rows=ROWS, mode="direct", logits=LOGITS, read=True):
    """One step in which each of these requests gets a token; `read`: the outputs take it."""
    prepared = sampler.prepare(names, rows, [len(outputs[name]) for name in names], [True] * len(names))
    tokens = run(sampler, prepared, logits.expand(rows, -1), mode).tokens.tolist()
    for name, token in zip(names, tokens, strict=False):
        if read:
            outputs[name].append(token)
    return tokens[: len(names)]


@given(
    others=st.lists(
        st.sampled_from(
            [Parameters(), Parameters(temperature=0.0), Parameters(top_p=0.5), Parameters(presence_penalty=1)]
        ),
        max_size=3,
    ),
    place=st.integers(0, 3),
    seed=st.integers(-(2**63), 2**64 - 1),
)
def test_a_seed_decides_the_tokens(others, place, seed):
    """Whatever else is in the batch, in whichever row and slot, also after a pause in which its slot was taken."""
    params = Parameters(seed=seed, temperature=1.5)
    alone, outputs = new_sampler(), {"x": []}
    alone.add("x", params, [], outputs["x"])
    for _ in range(4):
        step(alone, outputs, ["x"])
    expected = outputs["x"]

    sampler, outputs = new_sampler(seed=1), {name: [] for name in ["x", *map(str, range(len(others)))]}
    names = [name for name in outputs if name != "x"]
    for name, other in zip(names, others, strict=True):
        sampler.add(name, other, [1, 2], outputs[name])
    sampler.add("x", params, [], outputs["x"])
    names.insert(min(place, len(names)), "x")
    for _ in range(2):
        step(sampler, outputs, names)
    sampler.remove("x")
    outputs["y"] = []
    sampler.add("y", Parameters(), [], outputs["y"])
    sampler.add("x", params, [], outputs["x"])
    for _ in range(2):
        step(sampler, outputs, names[::-1])
    assert outputs["x"] == expected


def test_requests_without_a_seed_differ():
    sampler, outputs = new_sampler(), {name: [] for name in "abcd"}
    for name in outputs:
        sampler.add(name, Parameters(temperature=3.0), [], outputs[name])
    for _ in range(8):
        step(sampler, outputs, list(outputs))
    assert len({tuple(output) for output in outputs.values()}) == 4
    again, repeated = new_sampler(), {"a": []}
    again.add("a", Parameters(temperature=3.0), [], repeated["a"])
    for _ in range(8):
        step(again, repeated, ["a"])
    assert repeated["a"] == outputs["a"], "the sampler's seed decides"


@pytest.mark.parametrize("mode", MODES)
def test_penalties_count_on_the_device(mode):
    """Greedy rows change places and sizes of batches; the counts are those of the tokens, which the host reads late."""
    sampler, outputs, prompts = new_sampler(mode), {}, {"a": [1, 2, 2], "b": [5], "c": []}
    params = {
        "a": Parameters(temperature=0.0, frequency_penalty=0.4, presence_penalty=0.3),
        "b": Parameters(temperature=0.0, repetition_penalty=1.4),
        "c": Parameters(temperature=0.0),
    }
    for name, prompt in prompts.items():
        outputs[name] = []
        sampler.add(name, params[name], prompt, [])
    for number, names in enumerate(["abc", "bca", "b", "cab", "ab", "ba", "abc", "ca"]):
        expected = [int(adjusted(LOGITS.numpy(), params[n], prompts[n], outputs[n]).argmax()) for n in names]
        assert step(sampler, outputs, list(names), mode=mode) == expected, number
    assert len(set(outputs["a"])) > 3 and len(set(outputs["b"])) > 2 and len(set(outputs["c"])) == 1
    # It goes on, in another slot, with the tokens that it has.
    sampler.remove("a")
    sampler.add("d", Parameters(), [], [])
    sampler.add("a", params["a"], prompts["a"], outputs["a"])
    outputs["d"] = []
    expected = int(adjusted(LOGITS.numpy(), params["a"], prompts["a"], outputs["a"]).argmax())
    assert step(sampler, outputs, ["d", "a"], mode=mode)[1] == expected


def test_a_dropped_token_is_not_counted():
    """A step reads a part of a prompt: its row has a token, which nobody keeps."""
    params = Parameters(temperature=0.0, presence_penalty=2.0)
    sampler = new_sampler()
    sampler.add("a", params, [1], [])
    prepared = sampler.prepare(["a"], ROWS, [0], [False])
    assert prepared.variant == Variant(Level.GREEDY, False)
    run(sampler, prepared._replace(variant=Variant(Level.ADJUSTED, False)), LOGITS.expand(ROWS, -1))
    assert step(sampler, {"a": []}, ["a"]) == [int(LOGITS.argmax())]


@pytest.mark.parametrize("mode", MODES)
def test_forbidden_tokens_come_and_go(mode):
    """Greedy: no stop token before min_tokens, and no second token of bad words after the first ones."""
    order = LOGITS.argsort(descending=True).tolist()
    first, second, third = order[:3]
    sampler, outputs = new_sampler(mode), {"stop": [], "bad": []}
    sampler.add(
        "stop", Parameters(temperature=0.0, min_tokens=2, _all_stop_token_ids={first, 999}), [], outputs["stop"]
    )
    bad = [[first, first], [second, first], [first, second, first]]
    sampler.add("bad", Parameters(temperature=0.0, _bad_words_token_ids=bad), [], outputs["bad"])
    for _ in range(4):
        step(sampler, outputs, ["stop", "bad"], mode=mode)
    assert outputs["stop"] == [second, second, first, first]
    assert outputs["bad"] == [first, second, second, second]
    assert sampler.waits_for_tokens(["bad"]) and not sampler.waits_for_tokens(["stop"])
    # Nothing forbidden, nothing to pay.
    assert sampler.prepare(["stop"], ROWS, [4], [True]).variant == Variant(Level.GREEDY, False)
    assert third not in outputs["bad"]


@pytest.mark.parametrize(
    ("params", "level"),
    [
        (Parameters(temperature=0.0), Level.GREEDY),
        (Parameters(temperature=0.0, top_k=5, top_p=0.5), Level.GREEDY),
        (Parameters(), Level.RANDOM),
        (Parameters(min_p=0.1, top_k=VOCAB), Level.RANDOM),
        (Parameters(top_k=5), Level.FILTERED),
        (Parameters(top_p=0.5), Level.FILTERED),
        (Parameters(temperature=0.0, presence_penalty=0.1), Level.ADJUSTED),
        (Parameters(frequency_penalty=0.1), Level.ADJUSTED),
        (Parameters(repetition_penalty=1.1), Level.ADJUSTED),
        (Parameters(logit_bias={1: 1.0}), Level.ADJUSTED),
        (Parameters(allowed_token_ids=[1]), Level.ADJUSTED),
        (Parameters(_bad_words_token_ids=[[1]]), Level.ADJUSTED),
        (Parameters(_bad_words_token_ids=[[1, 2]]), Level.RANDOM),
        (Parameters(min_tokens=1, _all_stop_token_ids={3}), Level.ADJUSTED),
    ],
)
def test_a_step_pays_for_what_its_requests_use(params, level):
    sampler = new_sampler()
    sampler.add("a", params, [], [])
    assert sampler.prepare(["a"], ROWS, [0], [True]).variant == Variant(level, False)


def transfers():
    return (metrics.metric_data("TransferToDeviceTime") or (0,))[0]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_compiles_while_serving(mode):
    """All variants are warm; then requests of every kind come, change and go. A step without a grammar copies once."""
    sampler = new_sampler(mode)
    sampler.warm_up()
    for variant in VARIANTS:
        run(sampler, sampler.blank(ROWS, variant), LOGITS.expand(ROWS, -1), mode)
    compiled = metrics.metric_data("CompileTime")[0]
    random, outputs = np.random.default_rng(0), {}
    for number in range(24):
        name = str(number)
        outputs[name] = []
        params = Parameters(
            temperature=random.choice([0.0, 0.5, 1.7]),
            top_k=int(random.integers(-1, 40)),
            top_p=random.choice([1.0, 0.5]),
            min_p=random.choice([0.0, 0.1]),
            seed=int(random.integers(2**62)),
            presence_penalty=random.choice([0.0, 1.0]),
            repetition_penalty=random.choice([1.0, 1.2]),
            logit_bias={int(random.integers(VOCAB)): 1.0} if number % 3 == 0 else None,
            allowed_token_ids=[1, 2, 3] if number % 5 == 0 else None,
            _bad_words_token_ids=[[1, 2], [int(random.integers(VOCAB))]] if number % 4 == 0 else None,
            min_tokens=2,
            _all_stop_token_ids={5},
            logprobs=random.choice([None, 3]),
        )
        sampler.add(name, params, [1, 2, 3], outputs[name])
        running = list(outputs)[-3:]
        step(sampler, outputs, running, mode=mode)
        prepared = sampler.prepare(
            running,
            ROWS,
            [len(outputs[n]) for n in running],
            [True] * len(running),
            {name: words([1, 2, 5, 31], VOCAB)},
        )
        drawn = run(sampler, prepared, LOGITS.expand(ROWS, -1), mode).tokens.tolist()
        if number % 5 and number % 4:
            assert drawn[len(running) - 1] in (1, 2, 5, 31)
        if number >= 3:
            sampler.remove(str(number - 3))
    assert metrics.metric_data("CompileTime")[0] == compiled
    before = transfers()
    prepared = sampler.prepare(["23"], ROWS, [5], [True])
    assert transfers() == before and prepared.packed.device.type == "cpu"


@pytest.mark.parametrize("mode", MODES)
def test_tables_are_updated_in_place(mode):
    """1000 tokens: a shape that no other test has, so that the graphs are compiled here."""
    sampler = Sampler(1000, 16, torch_xla.device(), mode=mode)
    with optimized_modules() as modules:
        sampler.warm_up()
        run(sampler, sampler.blank(ROWS, Variant(Level.ADJUSTED, False)), torch.randn(ROWS, 1000), mode)
    updating = [text for text in modules if input_output_aliases(text)]
    assert len(updating) == 3
    assert not [
        text for text in updating if any("[16,1000]" in line and " copy(" in line for line in text.splitlines())
    ]


def test_refusals():
    sampler = new_sampler(slots=1)
    sampler.add("a", Parameters(_bad_words_token_ids=[[1, 2]]), [], [])
    for call, message in [
        (lambda: sampler.add("a", Parameters(), [], []), "Sampler: request_id: expected a new name, got a"),
        (
            lambda: sampler.add("b", Parameters(), [], []),
            "Sampler: request_id: expected at most 1 requests, got one more",
        ),
        (lambda: sampler.remove("b"), "Sampler: request_id: expected the name of a request, got b"),
        (lambda: sampler.prepare(["a", "a"], 1, [0, 0], [True] * 2), "Sampler: num_rows: expected at least 2, got 1"),
        (
            lambda: sampler.prepare(["b"], 1, [0], [True]),
            r"Sampler: request_ids: expected names of requests, got \['b'\]",
        ),
        (
            lambda: sampler.prepare(["a"], 1, [1], [True]),
            "Sampler: positions: expected 0, as bad words need all tokens, got 1",
        ),
        (
            lambda: sampler.prepare(["a"], 1, [0], [True], {"a": np.zeros(2, np.int32)}),
            r"Sampler: grammar: expected 1 words, got \(2,\)",
        ),
        (sampler.warm_up, "Sampler: warm_up: expected a call before the first request, got 1 requests"),
        (lambda: Sampler(0, 1, "cpu"), "Sampler: vocab_size: expected a count of 1 or more, got 0"),
        (lambda: Sampler(1, 0, "cpu"), "Sampler: max_num_seqs: expected a count of 1 or more, got 0"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
