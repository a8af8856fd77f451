"""Asks a server thousands of requests at once; some are aborted, some refused, and the cache is too small for all.

python -m tests.vllm.server.soak --requests 10000 [-- options of vllm serve]
"""

import asyncio
import random
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import click

from tests.vllm.engine import BLOCK_BYTES
from tests.vllm.models import make
from tests.vllm.server.asker import Asker
from tests.vllm.server.process import Server, serving

# More requests at once than run, each of up to 10 blocks.
AT_ONCE, SEQS, BLOCKS = 16, 8, 24
MIB = 1 << 20
ANSWER_S = 120
# How often the server is looked at; growth is counted after the warm-up, as the allocators fill up until then.
LOOKS, WARM_UP = 25, 0.3
IDLE = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@dataclass
class Found:
    """What a run has seen.

    Attributes:
        ended: kind -> requests that ended as they must.
        wrong: a line for each that did not.
        preemptions: of the scheduler.
        left: what the server still holds at the end, by the names of its metrics.
        memory: (requests, MiB of all processes of the server), now and then.
        files: open files of these processes, as often.
    """

    ended: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    preemptions: int = 0
    left: dict[str, float] = field(default_factory=dict)
    memory: list[tuple[int, float]] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """MiB per 1,000 requests after the warm-up: the slope of the line with the least squares."""
        late = [point for point in self.memory if point[0] >= WARM_UP * self.memory[-1][0]]
        x, y = (sum(values) / len(late) for values in zip(*late, strict=True))
        return 1000 * sum((a - x) * (b - y) for a, b in late) / sum((a - x) ** 2 for a, _ in late)


async def ask(server: Server, folder: Path, requests: int, seed: int = 0, say=lambda text: None) -> Found:
    """Asks, and looks at the server now and then; at the end waits until it is idle.

    Args:
        server: the server.
        folder: of its model.
        requests: how many.
        seed: of the choice of requests.
        say: called with lines of progress.
    """
    import openai

    found, numbers = Found(), random.Random(seed)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asker = Asker(client, folder, numbers)
        await asker.draw_alone()
        kinds = numbers.choices(list(Asker.KINDS), list(Asker.KINDS.values()), k=requests)
        every = -(-requests // LOOKS)
        for first in range(0, requests, every):
            waiting = iter(kinds[first : first + every])
            await asyncio.gather(*(_ask_all(asker, waiting, found) for _ in range(AT_ONCE)))
            _look(server, min(first + every, requests), found)
            say(f"{found.memory[-1][0]} requests: {found.memory[-1][1]:.0f} MiB, {found.files[-1]} open files")
    for _ in range(ANSWER_S):
        metrics = _metrics(server)
        found.preemptions = int(metrics["num_preemptions_total"])
        found.left = {name: metrics[name] for name in IDLE if metrics[name]}
        if not found.left:
            break
        await asyncio.sleep(1)
    return found


async def _ask_all(asker: Asker, kinds, found: Found) -> None:
    for kind in kinds:
        try:
            async with asyncio.timeout(ANSWER_S):
                await getattr(asker, f"ask_{kind}")()
            found.ended[kind] += 1
        except Exception as error:
            found.wrong.append(f"{kind}: {type(error).__name__}: {error}")


def _look(server: Server, asked: int, found: Found) -> None:
    import psutil

    first = psutil.Process(server.process.pid)
    processes = [first, *first.children(recursive=True)]
    found.memory.append((asked, sum(process.memory_info().rss for process in processes) / MIB))
    found.files.append(sum(process.num_fds() for process in processes))


def _metrics(server: Server) -> dict[str, float]:
    import httpx

    text = httpx.get(f"{server.url}/metrics").text
    return {name: float(value) for name, value in re.findall(r"^vllm:(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE)}


def options_of_server() -> list[str]:
    """With them the cache is full while AT_ONCE requests are there."""
    return ["--max-num-seqs", str(SEQS), "--kv-cache-memory-bytes", str(BLOCKS * BLOCK_BYTES)]


@click.command()
@click.option("--requests", default=10_000)
@click.option("--seed", default=0)
@click.argument("serve", nargs=-1)
def main(requests: int, seed: int, serve: tuple[str, ...]) -> None:
    """Prints what it has found; exit status 1 if a request did not end as it must, or the server holds one."""
    with tempfile.TemporaryDirectory() as name:
        folder = make("llama", Path(name))
        with serving(folder, Path(name, "log"), *options_of_server(), *serve) as server:
            begin = time.monotonic()
            found = asyncio.run(ask(server, folder, requests, seed, click.echo))
            seconds = time.monotonic() - begin
    click.echo(f"{sum(found.ended.values())} of {requests} requests ended as they must, in {seconds:.0f} s")
    click.echo(", ".join(f"{kind} {count}" for kind, count in sorted(found.ended.items())))
    click.echo(f"{found.preemptions} preemptions; memory {found.growth:+.2f} MiB per 1,000 requests")
    click.echo("\n".join([f"left: {found.left}", *found.wrong[:20]]))
    sys.exit(bool(found.wrong or found.left))


if __name__ == "__main__":
    main()
