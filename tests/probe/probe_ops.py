"""The Python side of the probe handlers: together they have every kind of argument and result."""

import torch

from pyxla import custom_op


@custom_op
def probe_attributes(
    x: torch.Tensor,
    integer: int,
    number: float,
    flag: bool,
    string: str,
    integers: list[int],
    numbers: list[float],
    maybe_integer: int | None = None,
    maybe_number: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All attributes as float64, and the string's bytes."""
    optional = [-1 if maybe_integer is None else maybe_integer, -1 if maybe_number is None else maybe_number]
    text = list(string.encode().ljust(64, b"\0"))
    values = [integer, number, flag, *integers, *numbers, *optional]
    return torch.tensor(values, dtype=torch.float64), torch.tensor(text, dtype=torch.uint8)


@probe_attributes.register_fake
def _(x, integer, number, flag, string, integers, numbers, maybe_integer=None, maybe_number=None):
    count = 5 + len(integers) + len(numbers)
    return x.new_empty(count, dtype=torch.float64), x.new_empty(64, dtype=torch.uint8)


@custom_op
def probe_optionals(a: torch.Tensor | None, x: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    """x + a[0] + 10 * b[0], where None counts as 0."""
    return x + (0 if a is None else a[0]) + 10 * (0 if b is None else b[0])


@probe_optionals.register_fake
def _(a, x, b=None):
    return torch.empty_like(x)


@custom_op
def probe_names(calls: torch.Tensor, key: torch.Tensor, type: float, tuple: list[int]) -> torch.Tensor:
    """calls + type * key + tuple[0]: arguments with names that pyxla's own code uses."""
    return calls + type * key + tuple[0]


@probe_names.register_fake
def _(calls, key, type, tuple):
    return torch.empty_like(calls)


@custom_op
def probe_iota(n: int, start: int, device: torch.device) -> torch.Tensor:
    """start, start + 1, ...: an op without operands, whose result's shape is an attribute."""
    return torch.arange(start, start + n, dtype=torch.float32, device=device)


@probe_iota.register_fake
def _(n, start, device):
    return torch.empty(n, dtype=torch.float32, device=device)


@custom_op(mutates=["cache"])
def probe_accumulate(cache: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """cache += update; returns the sum of the new cache."""
    cache += update
    return cache.sum().reshape(1)


@probe_accumulate.register_fake
def _(cache, update):
    return cache.new_empty(1)


@custom_op(mutates=["cache"])
def probe_increment(cache: torch.Tensor, by: float) -> None:
    """cache += by; no result."""
    cache += by


@probe_increment.register_fake
def _(cache, by):
    return None


@custom_op
def probe_parallel_count(x: torch.Tensor, grain: int) -> torch.Tensor:
    """How often a parallel loop visits each index: all ones."""
    return torch.ones(x.shape, dtype=torch.int32)


@probe_parallel_count.register_fake
def _(x, grain):
    return torch.empty_like(x, dtype=torch.int32)


@custom_op
def probe_fail(x: torch.Tensor) -> torch.Tensor:
    """A handler that returns an error if the first element is negative."""
    return x.clone()


@probe_fail.register_fake
def _(x):
    return torch.empty_like(x)


@custom_op
def probe_workspace(x: torch.Tensor, size: int) -> torch.Tensor:
    """The size in bytes of the handler's workspace: 0 on the CPU."""
    return torch.zeros(1)


@probe_workspace.register_fake
def _(x, size):
    return x.new_empty(1)


@probe_workspace.register_workspace
def _(x, size):
    return x.numel() * size
