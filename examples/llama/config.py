"""The shape of a model: a named one, or the one in a folder's config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from pyxla import ArgumentError, Check, PyxlaError
from pyxla.errors import mismatch

check = Check("llama")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Dtypes of the cache; None: the model's.
KV_CACHE_DTYPES = {"auto": None, "float8_e4m3fn": torch.float8_e4m3fn}


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of config.json of a Llama-architecture model, under their names.

    Attributes:
        rope: "rope_type" and its parameters, as in `rope_parameters` or `rope_scaling`; "default" or "llama3".
        initializer_range: standard deviation of random weights.
        eos_token_id: tokens that end a text.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    eos_token_id: tuple[int, ...] = ()
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})


CONFIGS = {
    # Its tokens are bytes. Its weights are large for its width, so that attention decides the next token.
    "tiny": LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        max_position_embeddings=1024,
        initializer_range=0.25,
    ),
    "llama-3-8b": LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        max_position_embeddings=8192,
    ),
}


def named(name: str, option: str, known: Mapping[str, Any], hint: str | None = None) -> Any:
    """The config or dtype of this name.

    Args:
        name: given by the user.
        option: the command's option for it.
        known: what the option accepts, by name.
        hint: what to do about another name.

    Raises:
        ArgumentError: the option does not accept the name.
    """
    if name not in known:
        raise ArgumentError(mismatch("llama", option, " or ".join(known), name), hint)
    return known[name]


def read_config(folder: Path) -> LlamaConfig:
    """The config of a folder in the layout of Hugging Face.

    Args:
        folder: contains config.json.

    Raises:
        PyxlaError: config.json is missing, unreadable, or of another architecture.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PyxlaError(
            mismatch("llama", "config", f"a readable {path}", f"{type(error).__name__}: {error}"),
            "the folder must contain config.json and *.safetensors",
        ) from error
    if not isinstance(values, dict):
        raise PyxlaError(mismatch("llama", "config", f"an object in {path}", type(values).__name__))
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    rope = {**rope, "rope_type": rope.get("rope_type", rope.get("type", "default"))}
    _require(values, rope, path)
    heads, ends = values["num_attention_heads"], values.get("eos_token_id")
    given = {"num_key_value_heads": heads, "head_dim": values["hidden_size"] // heads}
    for part in (values, rope):
        given |= {f.name: part[f.name] for f in fields(LlamaConfig) if part.get(f.name) is not None}
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    return LlamaConfig(**given | {"rope": rope, "eos_token_id": tuple(ends)})


def _require(values: dict[str, Any], rope: dict[str, Any], path: Path) -> None:
    """Raises for an architecture that this example does not compute."""
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    wrong = [name for name in sizes if not isinstance(values.get(name), int) or values[name] < 1]
    if wrong:
        raise PyxlaError(
            mismatch("llama", wrong[0], f"a count of 1 or more in {path}", values.get(wrong[0], "nothing")),
            "the config of a LlamaForCausalLM has it",
        )
    supported = {
        "model_type": ("llama", values.get("model_type", "llama")),
        "hidden_act": ("silu", values.get("hidden_act", "silu")),
        "attention_bias": (False, values.get("attention_bias", False)),
        "mlp_bias": (False, values.get("mlp_bias", False)),
        "rope_type": ("default or llama3", rope["rope_type"]),
    }
    for name, (expected, got) in supported.items():
        if got not in (expected, *str(expected).split(" or ")):
            raise PyxlaError(mismatch("llama", name, f"{expected} in {path}", got), "this example computes no other")
