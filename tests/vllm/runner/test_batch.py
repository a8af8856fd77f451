"""The requests between steps: a part of a prompt, a token that only the device knows, a row that another one gets."""

from types import SimpleNamespace

import numpy as np
import pytest

from pyxla.vllm.runner.batch import Batch
from pyxla.vllm.runner.buckets import Bucket, Buckets
from pyxla.vllm.runner.inputs import Layout

BUCKET = Bucket(tokens=8, requests=4)
BLOCK = 4


def scheduled(new=(), cached=(), finished=()):
    """What the scheduler sends: new (id, prompt, computed, blocks), cached (id, computed, blocks or None)."""
    names = ("req_id", "prompt_token_ids", "num_computed_tokens", "block_ids")
    ids, computed, blocks = ([entry[i] for entry in cached] for i in range(3))
    return SimpleNamespace(
        finished_req_ids=set(finished),
        scheduled_new_reqs=[
            SimpleNamespace(**dict(zip(names, (*entry[:3], (entry[3],)), strict=True))) for entry in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=ids,
            num_computed_tokens=computed,
            new_block_ids=[None if ids is None else (ids,) for ids in blocks],
        ),
    )


@pytest.fixture
def batch():
    return Batch(rows=2, max_length=16, max_blocks=4, block_size=BLOCK)


def planned(batch, counts):
    """The plan of a step, and its parts as lists."""
    layout = Layout(BUCKET, 4)
    plan = batch.plan(counts, BUCKET, layout)
    tokens, positions, metadata = layout.unpack(plan.packed)
    return plan, SimpleNamespace(
        tokens=tokens.tolist(),
        positions=positions.tolist(),
        **{name: getattr(metadata, name).tolist() for name in metadata._fields},
    )


def test_two_prompts_one_in_part(batch):
    batch.update(scheduled(new=[("a", [11, 12, 13, 14, 15], 0, [7, 2]), ("b", [21, 22, 23, 24], 1, [5])]))
    plan, parts = planned(batch, {"a": 5, "b": 2})
    assert plan.samples.tolist() == [True, False]
    assert parts.tokens == [11, 12, 13, 14, 15, 22, 23, 0]
    assert parts.positions == [0, 1, 2, 3, 4, 1, 2, 0]
    assert parts.slot_mapping == [28, 29, 30, 31, 8, 21, 22, -1]
    assert parts.context_lens == [5, 3, 0, 0]
    assert parts.block_tables == [[7, 2, 0, 0], [5, 0, 0, 0], [0] * 4, [0] * 4]
    assert parts.query_start_loc == [0, 5, 7, 7, 7]
    assert parts.num_seqs == [2]


def test_a_token_that_is_not_read_comes_from_the_step_before(batch):
    batch.update(scheduled(new=[("a", [11, 12, 13], 0, [1]), ("b", [21], 0, [2])]))
    first, _ = planned(batch, {"a": 2, "b": 1})
    batch.launched(first)
    batch.update(scheduled(cached=[("b", 1, None), ("a", 2, None)]))
    second, parts = planned(batch, {"b": 1, "a": 1})
    # b's is the token of the first step's second request; a had not generated one.
    assert parts.tokens[:2] == [-2, 13]
    batch.launched(second)
    batch.has_read(first, np.array([90, 91], dtype=np.int32))
    batch.has_read(second, np.array([92, 93], dtype=np.int32))
    batch.update(scheduled(cached=[("a", 3, None), ("b", 2, None)]))
    _, parts = planned(batch, {"a": 1, "b": 1})
    assert parts.tokens[:2] == [93, 92]
    assert batch._tokens[batch._row_of["b"], :3].tolist() == [21, 91, 92]


def test_a_preempted_request_computes_its_own_tokens_again(batch):
    batch.update(scheduled(new=[("a", [11, 12, 13], 0, [1])]))
    first, _ = planned(batch, {"a": 3})
    batch.launched(first)
    batch.has_read(first, np.array([14], dtype=np.int32))
    batch.update(scheduled(cached=[("a", 0, [3])]), {"a"})
    plan, parts = planned(batch, {"a": 4})
    assert (parts.tokens[:4], parts.block_tables[0]) == ([11, 12, 13, 14], [3, 0, 0, 0])
    assert plan.samples.tolist() == [True]


def test_a_late_token_does_not_reach_the_next_request_of_the_row(batch):
    batch.update(scheduled(new=[("a", [11], 0, [1])]))
    late, _ = planned(batch, {"a": 1})
    batch.launched(late)
    batch.update(scheduled(new=[("b", [21, 22, 23], 0, [2])], finished=["a"]))
    assert batch._row_of == {"b": late.rows[0]}
    batch.has_read(late, np.array([99], dtype=np.int32))
    assert planned(batch, {"b": 3})[1].tokens[:3] == [21, 22, 23]


def test_more_requests_than_rows(batch):
    batch.update(scheduled(new=[(str(i), [10 + i], 0, [i]) for i in range(4)]))
    assert planned(batch, dict.fromkeys("0123", 1))[1].tokens[:4] == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("max_tokens", "max_requests", "expected"),
    [
        (8, 4, [(8, 4)]),
        (5, 9, [(5, 9)]),
        (40, 16, [(16, 16), (32, 16), (40, 16)]),
        (2048, 256, [(16, 16), (32, 64), (64, 64), (128, 128), (256, 256), (512, 256), (768, 256), (1024, 256), (1536, 256), (2048, 256)]),  # noqa: E501
    ],
)  # fmt: skip
def test_buckets(max_tokens, max_requests, expected):
    buckets = Buckets(max_tokens, max_requests)
    assert [tuple(bucket) for bucket in buckets.all] == expected
    for tokens in range(1, max_tokens + 1):
        fitting = buckets.fitting(tokens)
        assert fitting.tokens >= tokens and fitting.requests >= min(tokens, max_requests)
