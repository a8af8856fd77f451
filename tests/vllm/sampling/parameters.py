"""vLLM's SamplingParams as far as the tests need them: its fields and defaults, where vLLM is not installed."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Parameters:
    """test_parameters.py compares it with the original."""

    n: int = 1
    best_of: int | None = None
    _real_n: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logits_processors: Any = None
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    output_kind: int = 0
    output_text_buffer_length: int = 0
    _all_stop_token_ids: set[int] = field(default_factory=set)
    structured_outputs: Any = None
    guided_decoding: Any = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    _bad_words_token_ids: list[list[int]] | None = None
    # Not in vLLM 0.11.0.
    skip_reading_prefix_cache: bool = False

    @property
    def __struct_fields__(self) -> tuple[str, ...]:
        return tuple(self.__dataclass_fields__)

    @property
    def all_stop_token_ids(self) -> set[int]:
        return self._all_stop_token_ids

    @property
    def bad_words_token_ids(self) -> list[list[int]] | None:
        return self._bad_words_token_ids
