"""Sampling on the device: all that vLLM's SamplingParams say about the next token.

`Sampler` holds the state of the running requests and prepares a step; `sample` is the step's function of tensors.
"""

from pyxla.vllm.sampling.logprobs import Logprobs, score
from pyxla.vllm.sampling.parameters import check_parameters
from pyxla.vllm.sampling.prompt_logprobs import PromptLogprobs
from pyxla.vllm.sampling.rows import COLUMNS
from pyxla.vllm.sampling.sample import LOGPROBS_MODES, VARIANTS, Level, Sampled, Variant, sample
from pyxla.vllm.sampling.sampler import Prepared, Sampler
from pyxla.vllm.sampling.tables import Tables

__all__ = [
    "COLUMNS",
    "LOGPROBS_MODES",
    "VARIANTS",
    "Level",
    "Logprobs",
    "Prepared",
    "PromptLogprobs",
    "Sampled",
    "Sampler",
    "Tables",
    "Variant",
    "check_parameters",
    "sample",
    "score",
]
