"""Which requests have a slot of the sampler: those of the step, whatever ran before."""

from types import SimpleNamespace

import numpy as np
import torch
import torch_xla

from pyxla.vllm.runner.buckets import Bucket
from pyxla.vllm.runner.sampler import StepSampler
from tests.vllm.sampling.parameters import Parameters

BUCKET, VOCAB = Bucket(tokens=4, requests=2), 8


def scheduled(new=None, finished=()):
    """What the scheduler sends; `new` is name -> the token that a bias makes it generate."""
    requests = [
        SimpleNamespace(
            req_id=name,
            sampling_params=Parameters(temperature=0.0, logit_bias={token: 100.0}),
            prompt_token_ids=[1],
        )
        for name, token in (new or {}).items()
    ]
    return SimpleNamespace(finished_req_ids=set(finished), scheduled_new_reqs=requests)


def tokens_of(sampler, *names):
    """The tokens of a step of these requests."""
    count = len(names)
    plan = SimpleNamespace(ids=list(names), ends=np.ones(count, int), samples=np.ones(count, bool))
    prepared = sampler.prepare(plan, BUCKET, {})
    device = torch_xla.device()
    likeliest, logits = torch.zeros(2, dtype=torch.int32).to(device), torch.zeros(2, VOCAB).to(device)
    return sampler.run(prepared, likeliest, logits).tokens.cpu().tolist()[:count]


def test_more_requests_than_slots():
    model = SimpleNamespace(get_vocab_size=lambda: VOCAB, max_logprobs=2, seed=0, logprobs_mode="raw_logprobs")
    sampler = StepSampler(model, 2, torch_xla.device(), "direct", lambda hidden: hidden)
    sampler.update(scheduled({"a": 3, "b": 4, "c": 5}))
    assert tokens_of(sampler, "a", "b") == [3, 4]
    assert tokens_of(sampler, "b", "c") == [4, 5]
    assert tokens_of(sampler, "a", "c") == [3, 5]
    sampler.update(scheduled({"d": 6}, finished=["a", "b", "never ran"]))
    assert sampler._held == {"c"}
    assert tokens_of(sampler, "d", "c") == [6, 5]
