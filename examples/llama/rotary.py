"""The angles of rotary position embedding: plain, or stretched as in Llama 3.1."""

from __future__ import annotations

import math

import torch

from examples.llama.config import LlamaConfig

_STRETCH = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def cos_sin_table(config: LlamaConfig) -> torch.Tensor:
    """[max_position_embeddings, head_dim], float32: the cosines of all pairs, then the sines; computed in float64.

    Source: Su et al., "RoFormer", 2021, arXiv:2104.09864; "llama3" scales it as the Llama 3.1 models do:
    "The Llama 3 Herd of Models", 2024, arXiv:2407.21783.
    """
    frequencies = config.rope_theta ** -(torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    if config.rope["rope_type"] == "llama3":
        frequencies = _stretch(frequencies, **{name: v for name, v in config.rope.items() if name in _STRETCH})
    angles = torch.arange(config.max_position_embeddings, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1).float()


def _stretch(
    frequencies: torch.Tensor,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> torch.Tensor:
    """Divides slow frequencies by `factor`, keeps fast ones, and interpolates between the two."""
    turns = original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)
