"""Which tokens of which requests make the next step: continuous batching with chunked prefill. No tensor, no device."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from examples.llama.sampling import MAX_TOP_K, check_sampling
from pyxla import Check
from pyxla.nn import BlockTables, CachedSequence

check = Check("llama")


@dataclass(eq=False)
class Request:
    """A prompt and how to continue it.

    Attributes:
        prompt: its tokens, at least one.
        max_tokens: how many to generate.
        temperature, top_k, top_p: as sampling.Draws; temperature 0 is greedy.
        seed: of the random numbers, which do not depend on the rest of the batch.
        stop: tokens that end the text; such a token is its last.
        output: the tokens generated so far.
        is_done: whether no more will come.
    """

    prompt: list[int]
    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = MAX_TOP_K
    top_p: float = 1.0
    seed: int = 0
    stop: frozenset[int] = frozenset()
    output: list[int] = field(default_factory=list)
    is_done: bool = False


@dataclass(eq=False)
class Running:
    """A request that has blocks.

    Attributes:
        request: the request.
        sequence: its blocks; `sequence.length` tokens were submitted to the device.
        generated: number of tokens requested from the device; the last may not be read yet.
        unread: row of the last step that generates its next token; None: its prompt is not complete yet. After that
            every step has a row of it, so the token that it continues is always the previous step's.
        numbers: its random numbers.
    """

    request: Request
    sequence: CachedSequence
    numbers: random.Random
    generated: int = 0
    unread: int | None = None


@dataclass(frozen=True)
class Chunk:
    """One request's part of a step.

    Attributes:
        running: its request.
        position: the position of its first token.
        tokens: the tokens to compute; -1 - row means the token that this row of the previous step generates.
        samples: whether the chunk's last row generates a token.
    """

    running: Running
    position: int
    tokens: list[int]
    samples: bool


class Scheduler:
    """A queue of requests, and the running ones.

    A request starts when the cache has room for everything that it may grow to, so no running request is ever evicted.
    Until then it waits, and so do those after it.

    Args:
        tables: the cache's blocks.
        max_seqs: requests that run at the same time.
        max_step_tokens: tokens of a step; at least max_seqs, so that every request advances in each step.
        max_length: tokens of a request, prompt and output.
        vocab_size: all tokens are below it.

    Attributes:
        waiting, running: the requests, in order.
        shared_tokens: prompt tokens that were in the cache already when their request started.

    Raises:
        ArgumentError: max_seqs or max_step_tokens are too small.
    """

    def __init__(self, tables: BlockTables, max_seqs: int, max_step_tokens: int, max_length: int, vocab_size: int):
        check.that(max_seqs >= 1, "max_seqs", "a count of 1 or more", max_seqs)
        enough = max_step_tokens >= max_seqs
        check.that(enough, "max_step_tokens", f"at least max_seqs, {max_seqs}", max_step_tokens)
        self.tables, self.max_seqs, self.max_step_tokens = tables, max_seqs, max_step_tokens
        self.max_length, self.vocab_size = max_length, vocab_size
        self.waiting: deque[Request] = deque()
        self.running: list[Running] = []
        self.shared_tokens = 0

    def submit(self, request: Request) -> None:
        """Puts a request at the end of the queue.

        Args:
            request: a new one.

        Raises:
            ArgumentError: as `require`.
        """
        self.require(request)
        self.waiting.append(request)

    def require(self, request: Request) -> None:
        """Raises for a request that could never run.

        Args:
            request: a new one.

        Raises:
            ArgumentError: it was served before, is longer than the limit or than the whole cache, its prompt is empty
                or contains a token that the model does not know, or its sampling is out of range.
        """
        check.that(not request.output, "request", "a new one", f"one with {len(request.output)} tokens of output")
        tokens, limit = len(request.prompt), self.max_length
        check.that(tokens >= 1, "prompt", "at least 1 token", 0)
        wrong = [token for token in request.prompt if not 0 <= token < self.vocab_size]
        check.that(not wrong, "prompt", f"tokens in [0, {self.vocab_size})", wrong[0] if wrong else None)
        check.that(request.max_tokens >= 1, "max_tokens", "a count of 1 or more", request.max_tokens)
        total = tokens + request.max_tokens
        hint = "shorten the prompt, ask for fewer tokens, or raise the limit"
        check.that(
            total <= limit, "prompt", f"at most {limit} tokens with max_tokens", f"{tokens} and {total - tokens}", hint
        )
        blocks = self._blocks(request)
        hint = "make the cache larger (num_blocks), or ask for less"
        check.that(blocks <= self.tables.num_blocks, "prompt", f"at most {self.tables.num_blocks} blocks", blocks, hint)
        check_sampling(request.temperature, request.top_k, request.top_p)

    def plan(self) -> list[Chunk]:
        """The next step: a token of each request that generates, then as much of the prompts as fits.

        Pass the chunks to the cache (`PagedKVCache.extend`) and submit them to the device before the next call.

        Returns:
            The chunks, one per request; empty if there is nothing to do.
        """
        self._admit()
        ready = [running for running in self.running if running.generated < running.request.max_tokens]
        # Requests with one token left come first: they generate, or are about to.
        ready.sort(key=lambda running: self._left(running) > 1)
        chunks, room = [], self.max_step_tokens
        for running in ready:
            chunk = self._chunk(running, room)
            if chunk is not None:
                chunks.append(chunk)
                room -= len(chunk.tokens)
        for row, chunk in enumerate(chunks):
            if chunk.samples:
                chunk.running.generated += 1
            chunk.running.unread = row if chunk.samples else None
        return chunks

    def take(self, chunk: Chunk, token: int) -> bool:
        """Takes the token that a chunk's last row generated, and ends the request if it was its last one.

        Args:
            chunk: a chunk that samples, of the step that was read.
            token: its token.

        Returns:
            Whether the token belongs to the text: a step in flight when the text ends generates one token too many.
        """
        running, request = chunk.running, chunk.running.request
        if request.is_done:
            return False
        request.output.append(token)
        if len(request.output) == request.max_tokens or token in request.stop:
            request.is_done = True
            self.running.remove(running)
            self.tables.close(running.sequence)
        return True

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_seqs:
            request = self.waiting[0]
            sequence = self.tables.open(request.prompt)
            promised = sum(self._blocks(r.request) - len(r.sequence.blocks) for r in self.running)
            if self._blocks(request) - len(sequence.blocks) > self.tables.free_blocks - promised:
                self.tables.close(sequence)
                return
            self.shared_tokens += sequence.length
            self.running.append(Running(self.waiting.popleft(), sequence, random.Random(request.seed)))

    def _blocks(self, request: Request) -> int:
        """The most blocks that a request may need; its last token is never written."""
        return -(-(len(request.prompt) + request.max_tokens - 1) // self.tables.block_size)

    def _left(self, running: Running) -> int:
        """Tokens that were not submitted to the device yet, including the unread one."""
        request = running.request
        return len(request.prompt) + len(request.output) + (running.unread is not None) - running.sequence.length

    def _chunk(self, running: Running, room: int) -> Chunk | None:
        left, position = self._left(running), running.sequence.length
        count = min(left, room)
        if count == 0:
            return None
        if running.unread is not None:
            return Chunk(running, position, [-1 - running.unread], samples=True)
        return Chunk(running, position, running.request.prompt[position : position + count], samples=count == left)
