"""A bench of some microseconds, for the tests of what a bench does."""

import torch

from pyxla.benchmark import Bench, nbytes


def small(**changes) -> Bench:
    """simple_add on a few elements."""
    fields = {
        "name": "small",
        "why": "quick",
        "build": lambda g: {"a": torch.randn(4, 8, generator=g), "b": torch.randn(4, 8, generator=g), "alpha": 0.5},
        "bytes": lambda a: 3 * nbytes(a["a"]),
        "operations": lambda a: 2 * a["a"].numel(),
        "peer": lambda a, b, alpha: torch.add(a, b, alpha=alpha),
    }
    return Bench(**fields | changes)
