"""Tokens of vLLM on XLA are those of transformers, one for one, and nothing is compiled while it serves."""

import pytest

import pyxla
from tests.vllm.engine import MARKS, MODES, engine, generate, prompts_of
from tests.vllm.models import ARCHITECTURES, greedy

pytestmark = MARKS
# One block; prompts in two and in three steps, of which the others take a part; one that shares a step.
LENGTHS = (5, 40, 90, 17)
COUNT = 12


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tokens_are_those_of_transformers(folder_of, name, mode):
    folder, prompts = folder_of(name), prompts_of(*LENGTHS)
    llm = engine(folder, mode)
    with pyxla.assert_no_recompilation(), pyxla.assert_no_fallback():
        tokens = generate(llm, prompts, COUNT)
    assert tokens == greedy(folder, prompts, COUNT)
