"""The inputs on which an op is tested."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pyxla.errors import DefinitionError, mismatch
from pyxla.torch_ops.implementation import Implementation

if TYPE_CHECKING:
    from pyxla.torch_ops.custom_op import CustomOp


@dataclass(frozen=True)
class Case:
    """One tested input of an op.

    Attributes:
        name: short, for the test's id: "bf16-3x1000".
        why: the reason for this size or these values.
        build: makes the arguments by name, CPU tensors, from a seeded generator.
        peer: the same computation by torch in the same dtype, if torch has it: the op's root mean square error may be
            1.5 times the peer's.
        roundings: how many float32 roundings of a row's largest value the error may have besides the result's own
            rounding.
        cuda_roundings: the same for a 16-bit result from a GPU, whose kernel on tensor cores also rounds intermediate
            values to 16 bits; None: as `roundings`.
        cuda_size: True if only the CUDA kernel treats these sizes differently: on the CPU, `devtool test` runs only
            check_raw for the case, and `devtool test --all` every test.
        repeatable: whether two calls with these arguments return the same bits; False, say, for sums by atomics.
    """

    name: str
    why: str
    build: Callable[[torch.Generator], dict[str, Any]]
    peer: Callable[..., Any] | None = None
    roundings: int = 16
    cuda_roundings: int | None = None
    cuda_size: bool = False
    repeatable: bool = True

    def __str__(self) -> str:
        return self.name

    def roundings_of(self, result: torch.Tensor, device_type: str) -> int:
        """The roundings that are allowed for a result, computed on "CUDA" or another device."""
        on_tensor_cores = device_type == "CUDA" and result.dtype.itemsize == 2
        return self.roundings if self.cuda_roundings is None or not on_tensor_cores else self.cuda_roundings

    def arguments(self, seed: int = 0) -> dict[str, Any]:
        """The arguments for a seed."""
        return self.build(torch.Generator().manual_seed(seed))

    def form(self) -> tuple:
        """The properties of the arguments that matter to torch and XLA; others (lengths, values) matter to the kernel.

        For a tensor: its dtype, its rank, and whether it is empty. For other arguments: None, the value of a flag, or
        the type.
        """
        return tuple((name, _form(value)) for name, value in self.arguments().items())


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.numel() == 0
    return value if value is None or isinstance(value, bool) else type(value)


@dataclass(frozen=True)
class BadInput:
    """Arguments that an op refuses.

    Attributes:
        name: for the test's id.
        build: as Case.build.
        message: the whole message, without the hint: `op: argument: expected X, got Y`.
        at_run_time: True if only the data shows it: XLA's CPU handler returns the error when the graph runs.
        only_python: True if the handler takes these arguments, and only Python refuses them.
        results: (shape, dtype) of each result for the call of the handler, without the arguments that it updates. None:
            as the fake function computes them without its checks or, if it fails, as for the op's first case.
    """

    name: str
    build: Callable[[torch.Generator], dict[str, Any]]
    message: str
    at_run_time: bool = False
    only_python: bool = False
    results: Sequence[tuple[Sequence[int], torch.dtype]] | None = None

    def __str__(self) -> str:
        return self.name

    def arguments(self) -> dict[str, Any]:
        """The arguments."""
        return self.build(torch.Generator().manual_seed(0))


def cases_of(op: CustomOp) -> list[Case]:
    """The cases of an op, from the cases.py of its folder: CASES, or <OP>_CASES for a further op of the folder.

    Args:
        op: an op or implementation, from `pyxla.find_op`.

    Returns:
        Its cases; for an implementation the cases of the op that it takes; empty if there is no such list.

    Raises:
        ModuleNotFoundError: there is no cases.py.
        DefinitionError: the op belongs to no kernel package.
    """
    if isinstance(op, Implementation):
        return [case for case in cases_of(op.op) if op.takes(case.arguments())]
    if op.package is None:
        raise DefinitionError(mismatch(op.name, "package", "a kernel package", f"none, as it is {op.declared_in()}"))
    module = importlib.import_module(op.package.module(op.library, "cases"))
    return list(getattr(module, cases_name(op), []))


def cases_name(op: CustomOp) -> str:
    """The name of the list of an op's cases."""
    return "CASES" if op.name == op.library else f"{op.name.upper()}_CASES"
