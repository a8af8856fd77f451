"""What vLLM's scheduler does with requests: parts of prompts, shared blocks, preemption, steps ahead of the host."""

import time

import pytest

import pyxla
from pyxla.vllm.runner.batch import Batch
from tests.vllm.engine import AHEAD, BLOCK_BYTES, MARKS, MODES, engine, generate, prompts_of, runner_of, scheduler_of
from tests.vllm.models import greedy

pytestmark = MARKS
COUNT = 30
LENGTHS = (100, 3, 64, 90, 17, 33, 80, 1, 48, 70)


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("mode", MODES)
def test_few_blocks_change_no_token(folder_of, monkeypatch, preempted, mode, ahead):
    """Requests of 130 tokens in 20 blocks of 16: some are preempted, and find blocks of their prompts again."""
    folder, prompts = folder_of("llama"), prompts_of(*LENGTHS)
    options = AHEAD if ahead else {}
    llm = engine(folder, mode, max_num_seqs=8, kv_cache_memory_bytes=20 * BLOCK_BYTES, **options)
    fed = steps_that_feed_themselves(monkeypatch, runner_of(llm), delay=0.01)
    hits = []
    monkeypatch.setattr(
        scheduler_of(llm).kv_cache_manager, "get_computed_blocks", hits_of(scheduler_of(llm).kv_cache_manager, hits)
    )
    with pyxla.assert_no_recompilation():
        tokens = generate(llm, prompts, COUNT)
    assert tokens == greedy(folder, prompts, COUNT)
    assert len(preempted) > 5 and sum(hits) > 0
    assert sum(fed) > 50 if ahead else sum(fed) == 0


def test_a_step_is_not_read_while_the_batch_changes(folder_of, monkeypatch):
    """vLLM reads it in a thread of its own; what it notes meanwhile would be lost."""
    folder, prompts, inside, overlaps = folder_of("llama"), prompts_of(5, 40, 17), [], []
    llm = engine(folder, "direct", **AHEAD)
    update, has_read = Batch.update, Batch.has_read

    def slow_update(self, *arguments):
        inside.append(True)
        time.sleep(0.02)
        update(self, *arguments)
        inside.pop()

    def watched_read(self, *arguments):
        overlaps.append(bool(inside))
        has_read(self, *arguments)

    monkeypatch.setattr(Batch, "update", slow_update)
    monkeypatch.setattr(Batch, "has_read", watched_read)
    assert generate(llm, prompts, COUNT) == greedy(folder, prompts, COUNT)
    assert len(overlaps) >= COUNT and not any(overlaps)


@pytest.mark.parametrize("mode", MODES)
def test_steps_without_requests_change_no_token(folder_of, monkeypatch, mode):
    """vLLM runs them in an engine that waits for others, also between a step and the one that takes its tokens."""
    from pyxla.vllm.runner.model_runner import ModelRunner

    folder, prompts = folder_of("llama"), prompts_of(5, 40, 90, 17)
    llm = engine(folder, mode, **AHEAD)
    # Longer than the empty step takes to trace on a busy machine.
    fed, compute = steps_that_feed_themselves(monkeypatch, runner_of(llm), delay=0.05), ModelRunner.compute

    def after_an_empty_one(self, scheduled):
        llm.llm_engine.model_executor.driver_worker.worker.execute_dummy_batch()
        return compute(self, scheduled)

    monkeypatch.setattr(ModelRunner, "compute", after_an_empty_one)
    with pyxla.assert_no_recompilation():
        tokens = generate(llm, prompts, 12)
    assert tokens == greedy(folder, prompts, 12) and sum(fed) > 5


def hits_of(manager, hits):
    """The manager's method, which notes how many tokens it found."""
    find = manager.get_computed_blocks

    def noted(request):
        blocks, tokens = find(request)
        hits.append(tokens)
        return blocks, tokens

    return noted


def steps_that_feed_themselves(monkeypatch, runner, delay):
    """For each step, whether it took tokens of the step before on the device. Reading is slow, as on a busy device."""
    from pyxla.vllm.runner.output import Flight

    fed, plan, read = [], Batch.plan, Flight.get_output

    def planned(self, scheduled, bucket, layout):
        made = plan(self, scheduled, bucket, layout)
        fed.append(bool((made.packed[: bucket.tokens] < 0).any()))
        return made

    def slow(self):
        time.sleep(delay)
        return read(self)

    monkeypatch.setattr(Batch, "plan", planned)
    monkeypatch.setattr(Flight, "get_output", slow)
    return fed
