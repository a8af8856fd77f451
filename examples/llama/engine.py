"""Steps on the device: the scheduler's chunks in, tokens out, one step ahead of the host."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch_xla

from examples.llama.model import Llama
from examples.llama.sampling import Draws, draw
from examples.llama.scheduler import Chunk, Request, Scheduler, check
from pyxla.nn import AttentionMetadata, PagedKVCache, attention_mode, in_mode, pack, split, unpack
from pyxla.testing import compilations

SMALLEST_BUCKET = 8
# The request of a row whose token nobody reads.
IDLE = Request([0])


@dataclass
class Counts:
    """Counts of an engine since `Engine.warm_up`.

    Attributes:
        steps: steps of the device.
        prompt_tokens, generated_tokens: tokens computed for prompts; tokens given to requests.
        rows: rows of all steps, including padding.
        seconds: spent in `run`.
        compilations: graphs that XLA compiled.
        decode_steps, decode_seconds: steps that only decode, each after another such step, and their time.
        decode_bytes: bytes that these steps read: the weights, and the keys and values of each sequence.
    """

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    rows: int = 0
    seconds: float = 0.0
    compilations: int = 0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    decode_bytes: int = 0


@dataclass(frozen=True)
class Flight:
    """A step submitted to the device: its chunks, and the tokens that it computes for their rows."""

    chunks: list[Chunk]
    tokens: torch.Tensor


class Engine:
    """Serves requests on a model: continuous batching over a paged cache.

    A step has one of a few numbers of rows (the buckets); everything else that changes from step to step is data. So
    XLA compiles one graph per bucket and one for drawing, for any requests.

    Args:
        model: on the device.
        num_blocks, block_size: of the cache.
        max_seqs: requests that run at the same time.
        max_step_tokens: rows of the largest step.
        max_length: tokens of a request, prompt and output.
        kv_cache_dtype: of the cache; None: the model's.
        mode: "direct" or "compile"; None: `PYXLA_ATTENTION_MODE`, else "direct".

    Attributes:
        buckets: the numbers of rows.
        cache: the PagedKVCache.
        counts: the Counts.

    Raises:
        ArgumentError: no such mode; a size out of range.
    """

    def __init__(
        self,
        model: Llama,
        *,
        num_blocks: int,
        block_size: int = 16,
        max_seqs: int = 8,
        max_step_tokens: int = 64,
        max_length: int = 512,
        kv_cache_dtype: torch.dtype | None = None,
        mode: str | None = None,
    ):
        config = model.config
        longest = config.max_position_embeddings
        check.that(1 <= max_length <= longest, "max_length", f"a count in [1, {longest}]", max_length)
        self.model, self.mode, self.max_seqs = model, attention_mode(mode), max_seqs
        self.device = model.norm.device
        self.cache = PagedKVCache(
            config.num_hidden_layers,
            num_blocks,
            block_size,
            config.num_key_value_heads,
            config.head_dim,
            dtype=model.dtype if kv_cache_dtype is None else kv_cache_dtype,
            device=self.device,
            mesh=model.mesh,
        )
        self.max_blocks = -(-max_length // block_size)
        self.scheduler = Scheduler(self.cache, max_seqs, max_step_tokens, max_length, config.vocab_size)
        self.buckets = _buckets(max_step_tokens)
        self.counts = Counts()
        # torch.compile gives up on a function after it has compiled more shapes than this.
        torch._dynamo.config.recompile_limit += len(self.buckets)
        self._step = in_mode(_step, self.mode)
        self._draw = in_mode(draw, self.mode)
        # A step reads only rows of the embedding, unless the embedding is also the head.
        read = {id(weight): weight.nbytes for name, weight in model.named_parameters() if name != "embedding"}
        self._weight_bytes = sum((read | {id(model.head): model.head.nbytes}).values())
        self._slots = num_blocks * block_size
        self._previous = self._to_device([], max_seqs, torch.int32)
        self._in_flight: Flight | None = None

    def submit(self, request: Request) -> Request:
        """Queues a request; its `output` grows while the engine runs.

        Args:
            request: a new one.

        Returns:
            The same request.

        Raises:
            ArgumentError: as Scheduler.submit.
        """
        self.scheduler.submit(request)
        return request

    def warm_up(self, *, sampling: bool = True) -> Iterator[int]:
        """Compiles all graphs that requests will need, one per iteration, and resets the counts.

        Args:
            sampling: also compile the graph for temperatures above 0.

        Yields:
            The bucket that was compiled.
        """
        for bucket in self.buckets:
            tokens = self.launch([], bucket, sampling=sampling and bucket == self.buckets[0])
            tokens.cpu()
            yield bucket
        self.counts = Counts()

    def generate(self, requests: Iterable[Request]) -> list[list[int]]:
        """Serves these requests, and returns the tokens of each.

        Args:
            requests: new ones.
        """
        submitted = [self.submit(request) for request in requests]
        for _ in self.run():
            pass
        return [request.output for request in submitted]

    def run(self) -> Iterator[list[Request]]:
        """Steps until no request is left. More requests may be submitted meanwhile.

        Yields:
            After each step, the requests that got a token.
        """
        counts, compiled, started = self.counts, compilations() - self.counts.compilations, time.perf_counter()
        decoded = False
        while True:
            chunks = self.scheduler.plan()
            # The next step is submitted before the last one is read, so that the device need not wait for the host.
            last, self._in_flight = self._in_flight, self._start(chunks) if chunks else None
            if last is None and self._in_flight is None:
                return
            advanced = self._read(last) if last else []
            now = time.perf_counter()
            seconds, started = now - started, now
            counts.seconds += seconds
            counts.compilations = compilations() - compiled
            # After a step of another kind, the time would include that step's.
            behind_decode, decoded = decoded, last is not None and _decodes(last)
            if decoded and behind_decode:
                counts.decode_steps += 1
                counts.decode_seconds += seconds
                counts.decode_bytes += self.bytes_read(last.chunks)
            yield advanced

    def _start(self, chunks: list[Chunk]) -> Flight:
        rows = sum(len(chunk.tokens) for chunk in chunks)
        bucket = next(size for size in self.buckets if size >= rows)
        sampling = any(chunk.samples and chunk.running.request.temperature > 0 for chunk in chunks)
        self.counts.steps += 1
        self.counts.rows += bucket
        self.counts.prompt_tokens += sum(len(c.tokens) for c in chunks if c.position < len(c.running.request.prompt))
        return Flight(chunks, self.launch(chunks, bucket, sampling=sampling))

    def launch(self, chunks: list[Chunk], bucket: int, *, sampling: bool) -> torch.Tensor:
        """Submits a step of `bucket` rows, including padding: each chunk's next token, [max_seqs], int32.

        With `sampling` a chunk draws its token as its request says; otherwise each takes the likeliest.
        """
        metadata = self.cache.extend(
            [(chunk.running.sequence, len(chunk.tokens)) for chunk in chunks],
            tokens=bucket,
            seqs=self.max_seqs,
            max_blocks=self.max_blocks,
            on_host=True,
        )
        tokens = [token for chunk in chunks for token in chunk.tokens]
        positions = [p for chunk in chunks for p in range(chunk.position, chunk.position + len(chunk.tokens))]
        data = [_padded(tokens, bucket), _padded(positions, bucket), *metadata]
        with torch.no_grad():
            new, logits = self._step(
                self.model,
                pack(data, self.device, self.model.mesh),
                [tuple(part.shape) for part in data],
                self._previous,
                self.cache.layers,
            )
            self._end_of_graph()
            if sampling:
                new = self._draw(logits, new, self._draws(chunks))
                self._end_of_graph()
        self._previous = new
        return new

    def _end_of_graph(self) -> None:
        """Runs the traced graph; a compiled function has run already."""
        if self.mode == "direct":
            torch_xla.sync()

    def _draws(self, chunks: list[Chunk]) -> Draws:
        requests = [chunk.running.request if chunk.samples else IDLE for chunk in chunks]
        uniform = [chunk.running.numbers.random() if chunk.samples else 0.0 for chunk in chunks]
        return Draws(
            temperature=self._to_device([request.temperature for request in requests], self.max_seqs, torch.float32),
            top_k=self._to_device([request.top_k for request in requests], self.max_seqs, torch.int32),
            top_p=self._to_device([request.top_p for request in requests], self.max_seqs, torch.float32),
            uniform=self._to_device(uniform, self.max_seqs, torch.float32),
        )

    def _to_device(self, values: list, size: int, dtype: torch.dtype) -> torch.Tensor:
        """The values on the device, padded with zeros to a size."""
        return split(_padded(values, size, dtype).to(self.device), self.model.mesh, None)

    def bytes_read(self, chunks: list[Chunk]) -> int:
        """Bytes of weights, keys and values that a decode step reads."""
        tokens = sum(chunk.position + 1 for chunk in chunks)
        return self._weight_bytes + tokens * sum(layer.nbytes for layer in self.cache.layers) // self._slots

    def _read(self, flight: Flight) -> list[Request]:
        """Waits for a step and gives its tokens to the requests."""
        tokens = flight.tokens.cpu().tolist()
        sampled = [(chunk, token) for chunk, token in zip(flight.chunks, tokens, strict=False) if chunk.samples]
        advanced = [chunk.running.request for chunk, token in sampled if self.scheduler.take(chunk, token)]
        self.counts.generated_tokens += len(advanced)
        return advanced


def _decodes(flight: Flight) -> bool:
    return all(len(chunk.tokens) == 1 and chunk.samples for chunk in flight.chunks)


def _padded(values: list, size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values + [0] * (size - len(values)), dtype=dtype)


def _step(
    model: Llama,
    packed: torch.Tensor,
    shapes: list[tuple[int, ...]],
    previous: torch.Tensor,
    kv_caches: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest next token of each sequence, [seqs], int32, and the logits, [seqs, vocabulary].

    Args:
        model: the model.
        packed: one tensor with tokens, [rows], int32, of which -1 - row means `previous[row]`; positions, [rows],
            int32; and the tensors of AttentionMetadata.
        shapes: the shapes of the packed tensors.
        previous: [seqs], int32; the tokens of the previous step.
        kv_caches: one per layer; updated in place.
    """
    tokens, positions, *metadata = unpack(packed, shapes)
    metadata = AttentionMetadata(*metadata)
    tokens = torch.where(tokens < 0, previous[(-1 - tokens).clamp(min=0)], tokens)
    hidden = model(tokens, positions, kv_caches, metadata)
    last = (metadata.query_start_loc[1:] - 1).clamp(min=0)
    logits = model.logits(hidden[last])
    return logits.argmax(dim=-1).to(torch.int32), logits


def _buckets(largest: int) -> list[int]:
    """Powers of two from SMALLEST_BUCKET, and the largest size."""
    sizes = [SMALLEST_BUCKET]
    while sizes[-1] * 2 < largest:
        sizes.append(sizes[-1] * 2)
    return [*(size for size in sizes if size < largest), largest]
