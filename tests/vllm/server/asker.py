"""Requests of many kinds to a server, each of which knows how it must end."""

import asyncio
import random
from pathlib import Path

from tests.vllm.engine import prompts_of
from tests.vllm.models import LONGEST, greedy

LONGEST_ANSWER = 40


class Asker:
    """Asks a server that serves a model as "tiny". A method `ask_KIND` raises unless its request ends as it must.

    Args:
        client: openai.AsyncOpenAI of the server.
        folder: of the model.
        numbers: for all choices.
    """

    # How many of a hundred requests are of each kind.
    KINDS = {  # noqa: RUF012
        "greedy": 35,
        "stream": 15,
        "seed": 10,
        "logprobs": 5,
        "two": 5,
        "left": 10,
        "left_at_once": 5,
        "too_long": 10,
        "refused": 5,
    }

    def __init__(self, client, folder: Path, numbers: random.Random):
        self._client, self._numbers = client, numbers
        shared = prompts_of(48)[0]
        # Some begin alike, as the prompts of a server do: they share their first blocks.
        self._prompts = [*prompts_of(*range(1, 120, 7)), *([*shared[:n], 7, n] for n in range(1, 48, 5))]
        self._likeliest = greedy(folder, self._prompts, LONGEST_ANSWER)
        self._drawn: list[list[int]] = []

    async def draw_alone(self) -> None:
        """Asks for the tokens that each seed gives while the server has no other request."""
        for i, prompt in enumerate(self._prompts):
            self._drawn.append(await self._tokens(prompt, LONGEST_ANSWER, temperature=0.9, seed=i))

    async def ask_greedy(self, **options) -> None:
        """The tokens are transformers'."""
        i, count = self._any()
        expect(await self._tokens(self._prompts[i], count, **options), self._likeliest[i][:count])

    async def ask_logprobs(self) -> None:
        """Also if other values are asked for."""
        await self.ask_greedy(logprobs=3)

    async def ask_seed(self) -> None:
        """The tokens are those of the seed."""
        i, count = self._any()
        expect(await self._tokens(self._prompts[i], count, temperature=0.9, seed=i), self._drawn[i][:count])

    async def ask_two(self) -> None:
        """Two answers, which may end with a stop word."""
        i, count = self._any()
        answer = await self._create(self._prompts[i], count, temperature=1.0, n=2, stop=["a", "ef"])
        expect({choice.finish_reason for choice in answer.choices} <= {"stop", "length"}, True)
        expect(len(answer.choices), 2)

    async def ask_stream(self) -> None:
        """Each token as soon as it is there."""
        i, count = self._any()
        found = []
        async for part in await self._create(self._prompts[i], count, stream=True):
            found += part.choices[0].token_ids
        expect(found, self._likeliest[i][:count])

    async def ask_left(self) -> None:
        """The client closes the connection after some tokens."""
        i, count = self._any()
        found = []
        parts = await self._create(self._prompts[i], LONGEST_ANSWER, stream=True)
        async for part in parts:
            found += part.choices[0].token_ids
            if len(found) >= count:
                break
        await parts.close()
        expect(found, self._likeliest[i][: len(found)])

    async def ask_left_at_once(self) -> None:
        """The client closes the connection while it waits."""
        asked = asyncio.create_task(self._tokens(self._prompts[self._any()[0]], LONGEST_ANSWER))
        await asyncio.sleep(self._numbers.random() / 20)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    async def ask_too_long(self) -> None:
        """A prompt over the limit."""
        await self._expect_refusal("maximum context length", [5] * self._numbers.randint(LONGEST + 1, 400))

    async def ask_refused(self) -> None:
        """A parameter that is not there."""
        await self._expect_refusal("vllm: extra_args", [5], extra_body={"vllm_xargs": {"a": 1}})

    def _any(self) -> tuple[int, int]:
        return self._numbers.randrange(len(self._prompts)), self._numbers.randint(1, LONGEST_ANSWER)

    async def _create(self, prompt: list[int], count: int, **options):
        body = {"return_token_ids": True, "ignore_eos": True} | options.pop("extra_body", {})
        chosen = {"model": "tiny", "prompt": prompt, "max_tokens": count, "temperature": 0} | options
        return await self._client.completions.create(**chosen, extra_body=body)

    async def _tokens(self, prompt: list[int], count: int, **options) -> list[int]:
        return (await self._create(prompt, count, **options)).choices[0].token_ids

    async def _expect_refusal(self, text: str, prompt: list[int], **options) -> None:
        import openai

        try:
            await self._create(prompt, 1, **options)
        except openai.BadRequestError as error:
            if text not in str(error):
                raise
        else:
            raise AssertionError("served")


def expect(got: object, expected: object) -> None:
    """Raises unless an answer is what it must be."""
    if got != expected:
        raise AssertionError(f"expected {expected}, got {got}")
