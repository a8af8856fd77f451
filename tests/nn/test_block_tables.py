"""pyxla.nn.BlockTables with a cache of plain values: a sequence always reads what was written for it."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyxla.errors import ArgumentError, PyxlaError
from pyxla.nn import BlockTables

BLOCKS, SIZE = 12, 3


class Machine(RuleBasedStateMachine):
    """Sequences open, grow, fork and close. A slot stores all tokens up to its own: key and value depend on them."""

    def __init__(self):
        super().__init__()
        self.tables = BlockTables(BLOCKS, SIZE)
        self.slots: dict[int, tuple] = {}
        self.texts: dict = {}
        self.unique = 1000

    def pick(self, data):
        return data.draw(st.sampled_from(list(self.texts)), label="sequence")

    # Only two different tokens, so that prompts often begin alike.
    @rule(prompt=st.lists(st.integers(0, 1), max_size=3 * SIZE))
    def open(self, prompt):
        sequence = self.tables.open(prompt)
        assert sequence.length <= max(0, len(prompt) - 1)
        self.texts[sequence] = tuple(prompt[: sequence.length])

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), count=st.integers(0, 2 * SIZE))
    def append(self, data, count):
        sequence = self.pick(data)
        text, free = self.texts[sequence], self.tables.free_blocks
        needed = self.tables.blocks_needed([(sequence, count)])
        if needed > free:
            before = (sequence.length, list(sequence.blocks))
            with pytest.raises(PyxlaError, match=f"PagedKVCache: blocks: expected {needed} that are free, got {free}"):
                self.tables.append(sequence, count)
            assert (sequence.length, list(sequence.blocks), self.tables.free_blocks) == (*before, free)
            return
        for _ in range(count):
            in_prompt = len(text) < len(sequence.prompt) and text == sequence.prompt[: len(text)]
            self.unique += 1
            text = (*text, sequence.prompt[len(text)] if in_prompt else self.unique)
        slots, copy = self.tables.append(sequence, count)
        assert self.tables.free_blocks == free - needed
        if copy is not None:
            for offset in range(SIZE):
                self.slots[copy[1] * SIZE + offset] = self.slots.get(copy[0] * SIZE + offset)
        for position, slot in zip(range(len(text) - count, len(text)), slots, strict=True):
            self.slots[slot] = text[: position + 1]
        self.texts[sequence] = text

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data):
        sequence = self.pick(data)
        self.texts[self.tables.fork(sequence)] = self.texts[sequence]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def close(self, data):
        sequence = self.pick(data)
        del self.texts[sequence]
        self.tables.close(sequence)
        with pytest.raises(ArgumentError, match="sequence: expected one that is open, got one that was closed"):
            self.tables.append(sequence, 1)

    @invariant()
    def every_sequence_reads_what_was_written_for_it(self):
        for sequence, text in self.texts.items():
            read = [self.slots[sequence.blocks[i // SIZE] * SIZE + i % SIZE] for i in range(sequence.length)]
            assert read == [text[: i + 1] for i in range(len(text))]

    @invariant()
    def blocks_add_up(self):
        held = {block for sequence in self.texts for block in sequence.blocks}
        assert len(held) + self.tables.free_blocks == BLOCKS
        assert all(len(s.blocks) == -(-s.length // SIZE) == len(set(s.blocks)) for s in self.texts)

    def teardown(self):
        for sequence in self.texts:
            self.tables.close(sequence)
        assert self.tables.free_blocks == BLOCKS


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase


def blocks_of(*sequences):
    return Counter(block for sequence in sequences for block in sequence.blocks)


def test_a_prompt_shares_the_full_blocks_of_one_that_is_there():
    tables = BlockTables(8, 4)
    first = tables.open(range(10))
    assert first.length == 0
    tables.append(first, 10)
    second = tables.open([*range(8), 99])
    assert (second.length, list(second.blocks)) == (8, list(first.blocks[:2]))
    # The last token must be computed, so its block is not shared, although it exists.
    assert tables.open(range(8)).length == 4
    assert tables.open([1, *range(8)]).length == 0


def test_what_was_generated_is_not_shared():
    """The tables do not know which tokens were generated."""
    tables = BlockTables(8, 2)
    first = tables.open([1, 2, 3])
    tables.append(first, 6)
    assert tables.open([1, 2, 3, 4, 5, 6]).length == 2


def test_a_prefix_is_gone_with_its_last_holder():
    tables = BlockTables(4, 2)
    first = tables.open([1, 2, 3])
    tables.append(first, 3)
    second = tables.open([1, 2, 3])
    tables.close(first)
    third = tables.open([1, 2, 3])
    assert third.length == 2 and blocks_of(second, third).most_common(1)[0][1] == 2
    tables.close(second)
    tables.close(third)
    assert tables.open([1, 2, 3]).length == 0 and tables.free_blocks == 4


def test_the_last_of_two_that_write_need_not_copy():
    tables = BlockTables(3, 4)
    first = tables.open()
    tables.append(first, 2)
    second, third = tables.fork(first), tables.fork(first)
    batch = [(first, 1), (second, 1), (third, 1)]
    assert tables.blocks_needed(batch) == 2
    copies = [tables.append(sequence, count)[1] for sequence, count in batch]
    assert [copy is not None for copy in copies] == [True, True, False]
    assert tables.free_blocks == 0 and len(blocks_of(first, second, third)) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BlockTables(0, 4), "num_blocks: expected a count of 1 or more, got 0"),
        (lambda: BlockTables(4, 0), "block_size: expected a count of 1 or more, got 0"),
        (lambda: (t := BlockTables(4, 4)).append(t.open(), -1), "count: expected a count of 0 or more, got -1"),
    ],
)
def test_wrong_sizes(call, message):
    with pytest.raises(ArgumentError, match=f"PagedKVCache: {message}"):
        call()
