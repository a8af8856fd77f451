"""Which block of a paged cache belongs to which sequence: plain Python, no tensor.

A block is free, or held by one sequence or several. Only the last, partly filled block of a sequence is ever written,
and if other sequences hold it too, it is copied first. Full blocks of prompts are found again by their content: the key
is the id of the block before and the tokens, so it identifies the whole prefix and does not rely on a hash.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyxla.errors import ArgumentError, PyxlaError, mismatch
from pyxla.op.arguments import Check

check = Check("PagedKVCache")
_START = -1


@dataclass(eq=False)
class CachedSequence:
    """A sequence in the cache; made by `open` and `fork`, changed only by the cache.

    Attributes:
        prompt: the tokens whose full blocks others may share.
        blocks: ids of its blocks, in order.
        length: number of tokens that have a slot.
        is_open: whether it still holds its blocks.
    """

    prompt: tuple[int, ...] = ()
    blocks: array = field(default_factory=lambda: array("i"))
    length: int = 0
    is_open: bool = True


class BlockTables:
    """Gives blocks to sequences and takes them back.

    Args:
        num_blocks: number of blocks.
        block_size: tokens in a block.

    Attributes:
        num_blocks, block_size: as given.

    Raises:
        ArgumentError: one of them is below 1.
    """

    def __init__(self, num_blocks: int, block_size: int):
        check.that(num_blocks >= 1, "num_blocks", "a count of 1 or more", num_blocks)
        check.that(block_size >= 1, "block_size", "a count of 1 or more", block_size)
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders = [0] * num_blocks
        self._block_of: dict[tuple[int, tuple[int, ...]], int] = {}
        self._key_of: dict[int, tuple[int, tuple[int, ...]]] = {}

    @property
    def free_blocks(self) -> int:
        """The number of blocks that no sequence holds."""
        return len(self._free)

    def open(self, prompt: Sequence[int] = ()) -> CachedSequence:
        """Opens a sequence, which shares the full blocks of its prompt that other open sequences hold.

        At least the prompt's last token is left to compute, for its logits.

        Args:
            prompt: its first tokens; empty: nothing is shared.

        Returns:
            CachedSequence: its length is the number of the prompt's tokens that are already in the cache.
        """
        sequence = CachedSequence(tuple(prompt))
        parent = _START
        for start in range(0, len(sequence.prompt) - self.block_size, self.block_size):
            block = self._block_of.get((parent, sequence.prompt[start : start + self.block_size]))
            if block is None:
                break
            self._holders[block] += 1
            sequence.blocks.append(block)
            sequence.length += self.block_size
            parent = block
        return sequence

    def blocks_needed(self, batch: Sequence[tuple[CachedSequence, int]]) -> int:
        """How many free blocks it takes to append to these sequences, including copies.

        Args:
            batch: open sequences, each with the number of its new tokens.
        """
        grown = sum(-(-(s.length + count) // self.block_size) - len(s.blocks) for s, count in batch)
        writers = Counter(s.blocks[-1] for s, count in batch if count > 0 and self._must_copy(s))
        # When the last holder of a shared block writes to it, the others have their copies: it needs none.
        return grown + sum(min(count, self._holders[block] - 1) for block, count in writers.items())

    def require_room(self, batch: Sequence[tuple[CachedSequence, int]]) -> None:
        """Raises unless all of these tokens can be appended.

        Args:
            batch: each sequence once, with the number of its new tokens.

        Raises:
            ArgumentError: a sequence was closed; a count is negative.
            PyxlaError: too few blocks are free.
        """
        for sequence, count in batch:
            self._require_open(sequence)
            check.that(count >= 0, "count", "a count of 0 or more", count)
        needed = self.blocks_needed(batch)
        if needed > len(self._free):
            raise PyxlaError(
                mismatch("PagedKVCache", "blocks", f"{needed} that are free", len(self._free)),
                "close sequences that are done, wait until they are, or make num_blocks larger",
            )

    def append(self, sequence: CachedSequence, count: int) -> tuple[array, tuple[int, int] | None]:
        """Gives slots to the next tokens of a sequence.

        Args:
            sequence: an open one.
            count: how many tokens.

        Returns:
            The slots, `block * block_size + offset`, and the copy to be made before they are written: (from block, to
            block), or None.

        Raises:
            ArgumentError: the sequence was closed; count is negative.
            PyxlaError: too few blocks are free; nothing has changed.
        """
        self.require_room([(sequence, count)])
        return self._append(sequence, count)

    def _append(self, sequence: CachedSequence, count: int) -> tuple[array, tuple[int, int] | None]:
        """As `append`, without the checks."""
        copy = None
        if count > 0 and self._must_copy(sequence):
            source, copied = sequence.blocks[-1], self._take()
            self._release(source)
            sequence.blocks[-1] = copied
            copy = (source, copied)
        end = sequence.length + count
        while len(sequence.blocks) * self.block_size < end:
            sequence.blocks.append(self._take())
        size, blocks = self.block_size, sequence.blocks
        slots = array("i", [blocks[i // size] * size + i % size for i in range(sequence.length, end)])
        first, sequence.length = sequence.length, end
        self._make_known(sequence, first)
        return slots, copy

    def fork(self, sequence: CachedSequence) -> CachedSequence:
        """Opens a second sequence that continues where this one ends, and holds the same blocks.

        Args:
            sequence: an open one.

        Raises:
            ArgumentError: the sequence was closed.
        """
        self._require_open(sequence)
        for block in sequence.blocks:
            self._holders[block] += 1
        return CachedSequence(sequence.prompt, sequence.blocks[:], sequence.length)

    def close(self, sequence: CachedSequence) -> None:
        """Closes a sequence and releases its blocks; blocks that other sequences hold stay in use.

        Args:
            sequence: an open one.

        Raises:
            ArgumentError: it was closed before.
        """
        self._require_open(sequence)
        sequence.is_open = False
        for block in reversed(sequence.blocks):
            self._release(block)
        del sequence.blocks[:]

    def _require_open(self, sequence: CachedSequence) -> None:
        if not sequence.is_open:
            raise ArgumentError(
                mismatch("PagedKVCache", "sequence", "one that is open", "one that was closed"), "open it again"
            )

    def _must_copy(self, sequence: CachedSequence) -> bool:
        """Whether the next token goes into a block that others hold too."""
        return sequence.length % self.block_size > 0 and self._holders[sequence.blocks[-1]] > 1

    def _take(self) -> int:
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def _release(self, block: int) -> None:
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._free.append(block)
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._block_of[key]

    def _make_known(self, sequence: CachedSequence, first: int) -> None:
        """Lets other sequences find the blocks of the prompt that were filled from position `first` on."""
        size = self.block_size
        for index in range(first // size, min(sequence.length, len(sequence.prompt)) // size):
            # A sequence that holds this block also holds the block before, whose id identifies the prefix.
            parent = sequence.blocks[index - 1] if index else _START
            key = (parent, sequence.prompt[index * size : (index + 1) * size])
            block = sequence.blocks[index]
            if key not in self._block_of and block not in self._key_of:
                self._block_of[key], self._key_of[block] = block, key
