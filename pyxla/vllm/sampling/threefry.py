"""Random numbers from a key and a counter alone: Threefry-2x32 with 20 rounds, in int32, whose arithmetic wraps.

The same key and counter give the same number in every row of every batch; a generator with a state would not.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

import torch

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_BELOW_ONE = 1 - 2.0**-24


def threefry(
    key: tuple[torch.Tensor, torch.Tensor], counter: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encrypts a counter with a key.

    Args:
        key: two words of 32 bits, int32, of shapes that broadcast with those of the counter.
        counter: two words of 32 bits, int32.

    Returns:
        Two words of 32 random bits, int32.
    """
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    a, b = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            a = a + b
            b = _rotate(b, distance) ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + (group + 1)
    return a, b


def exponential(key: tuple[torch.Tensor, torch.Tensor], counter: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Draws numbers of the exponential distribution with rate 1.

    Args:
        key, counter: as in `threefry`.

    Returns:
        float32, above 0 and finite.
    """
    high, low = threefry(key, counter)
    # 64 bits, because small numbers decide the race: float32 keeps as many digits of them as of others.
    uniform = _unsigned(high) * 2.0**-32 + (_unsigned(low) + 0.5) * 2.0**-64
    return -torch.log1p(-uniform.clamp(max=_BELOW_ONE))


def _rotate(word: torch.Tensor, distance: int) -> torch.Tensor:
    # torch_xla computes `>>` as a division, which rounds negative words to zero, and a shift by a number in int64.
    places = torch.full((), 32 - distance, dtype=torch.int32, device=word.device)
    right = torch.bitwise_right_shift(word, places)
    return (word << distance) | (right & ((1 << distance) - 1))


def _unsigned(word: torch.Tensor) -> torch.Tensor:
    return word.float() + torch.where(word < 0, 2.0**32, 0.0)
