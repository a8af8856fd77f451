"""The checks of one case: they compare numbers with the reference in float64, and inspect what XLA compiled.

A case is run lazily on XLA tensors, compiled with backend "openxla", and on CPU tensors. Each check leaves a record.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pyxla import hlo
from pyxla.hlo import dump
from pyxla.hlo import text as hlo_text
from pyxla.hlo.dump import compilations
from pyxla.pjrt.platform import device_type, platform_of, requested_device
from pyxla.sync import drain_errors
from pyxla.testing.binding_error import binding_error
from pyxla.testing.case import Case
from pyxla.testing.cuda_handler import check_cuda_handler
from pyxla.testing.device_memory import call_raw
from pyxla.testing.output_checks import check_declared_results, check_same_bits, check_unchanged, output_names
from pyxla.testing.tolerance import WorstElement, worst_element
from pyxla.torch_ops.custom_op import CustomOp

#: The records of the running test's checks; the plugin removes them after each test.
RECORDS: list[dict[str, Any]] = []

_OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def check_lazy(op: CustomOp, case: Case) -> None:
    """The op on lazily traced XLA tensors: right numbers, and no compilation for other values in the same shapes."""
    with _recorded(op, case, "lazy") as record:
        _check_on_xla(lambda arguments: op(**arguments), op, case, record)


def check_compiled(op: CustomOp, case: Case) -> None:
    """The op under torch.compile(backend="openxla", fullgraph=True), with XLA and with CPU tensors."""
    with _recorded(op, case, "compiled") as record:
        torch._dynamo.reset()
        compiled = torch.compile(lambda arguments: op(**arguments), backend="openxla", fullgraph=True)
        _check_on_xla(compiled, op, case, record)
        arguments = case.arguments()
        torch._dynamo.reset()
        with warnings.catch_warnings():
            # For CPU tensors openxla makes a graph that runs without XLA, and warns each time.
            warnings.filterwarnings("ignore", message="Found tensor with shape")
            got = _outputs(op, arguments, compiled(arguments))
        _note(record, _compare(op, case, got, _expected(op, case, 0)))
        check_unchanged(op, case.arguments(), arguments)


def check_hlo(op: CustomOp, case: Case) -> None:
    """The lowered module has one custom call, typed FFI, with row-major operands; updates in place need no copy."""
    with _recorded(op, case, "hlo"):
        import torch_xla

        arguments = move_to_xla(case.arguments())
        results = _outputs(op, arguments, op(**arguments))
        calls = hlo_text.custom_calls(hlo.lowered(list(results)), op.target)
        if not calls and device_type() == "CUDA" and not any(t.numel() for t in results):
            return  # On CUDA a result without elements is already a constant.
        assert len(calls) == 1, f"{op.name}: expected one custom call {op.target} in the HLO, got {len(calls)}"
        assert calls[0].api_version == "API_VERSION_TYPED_FFI"
        for shape in calls[0].operands:
            layout = re.fullmatch(r"[a-z]\w*\[[\d,]*\]\{([\d,]*)\}", shape)
            order = [int(d) for d in layout[1].split(",")] if layout and layout[1] else []
            assert order == sorted(order, reverse=True), f"{op.name}: expected row-major operands, got {shape}"
        mutated = [arguments[a.name] for a in op.schema.mutated]
        # XLA drops a call without elements and copies a constant for a result without elements, torch_xla never donates
        # the buffer of a scalar, and XLA may swap donated buffers of one size, with a copy of each.
        in_place = all(t.dim() for t in mutated) and all(t.numel() for t in results)
        in_place = in_place and len({t.nbytes for t in mutated}) == len(mutated)
        if mutated and in_place:
            # XLA writes no module for a cached graph.
            with dump.private_compilations(), hlo.optimized_modules() as modules:
                torch_xla.sync(wait=True)
            check_in_place(op, modules, len(op.schema.mutated))


def check_in_place(op: CustomOp, modules: list[str], count: int) -> None:
    """The module with the op's call aliases `count` inputs with outputs and copies nothing.

    `modules` does not contain a cached module; if it does not contain the op's, the check fails.
    """
    own = [text for text in modules if hlo_text.custom_calls(text, op.target)]
    assert own, f"{op.name}: expected an optimised module with {op.target}, got none of {len(modules)}"
    for text in own:
        aliases = hlo_text.input_output_aliases(text)
        assert len(aliases) == count, f"{op.name}: expected {count} aliased outputs, got {aliases}"
        found = hlo_text.copies(text)
        assert not found, f"{op.name}: expected no copy, got {[i.line for i in found]}"


def check_cpu(op: CustomOp, case: Case) -> None:
    """The op on CPU tensors, which is its reference in the case's own dtype."""
    with _recorded(op, case, "cpu") as record:
        arguments = case.arguments()
        got = _outputs(op, arguments, op(**arguments))
        _note(record, _compare(op, case, got, _expected(op, case, 0)))
        check_unchanged(op, case.arguments(), arguments)


def check_raw(op: CustomOp, case: Case) -> None:
    """The op's handler called through ctypes, without XLA, on CPU memory, or on CuPy's memory on a GPU.

    It writes only what the schema declares, and the same bits again. On the CPU of a machine without a GPU, the CUDA
    handler is called too, up to its launch.
    """
    with _recorded(op, case, "raw") as record:
        platform = platform_of(requested_device())
        for seed in (0, 1):
            want, peers = _expected(op, case, seed), _peer_results(op, case, seed)
            arguments = case.arguments(seed)
            after, got = call_raw(op, arguments, platform)
            _note(record, _compare(op, case, got, want, peers, platform))
            check_unchanged(op, arguments, after)
        if platform == "Host":
            record["cuda_handler"] = check_cuda_handler(op, case)
        if case.repeatable:
            check_same_bits(op, got, call_raw(op, arguments, platform)[1])


def check_opcheck(op: CustomOp, case: Case) -> None:
    """torch.library.opcheck: schema, autograd registration, fake function, AOT dispatch."""
    with _recorded(op, case, "opcheck"):
        arguments = case.arguments()
        tensors = [v for v in arguments.values() if isinstance(v, torch.Tensor)]
        # torch's test of the schema compares by arithmetic, which float8 does not have.
        is_float8 = any(t.is_floating_point() and t.dtype.itemsize == 1 for t in tensors)
        torch.library.opcheck(op.overload, (), arguments, test_utils=_OPCHECKS[1:] if is_float8 else _OPCHECKS)


#: The checks for every case of an op.
CHECKS = [check_lazy, check_compiled, check_hlo, check_raw, check_cpu, check_opcheck]
#: The checks of how a call travels, not of what the kernel computes: cases with one form of call (Case.form) are alike
#: for them.
CHECKS_OF_A_FORM = [check_compiled, check_hlo, check_cpu, check_opcheck]


def oracle(op: CustomOp, arguments: dict[str, Any], dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """The reference in float64, or another dtype: first the mutated arguments, then the results.

    `arguments` is not changed.
    """
    wide = {
        name: value.to(dtype if value.is_floating_point() else value.dtype, copy=True)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in arguments.items()
    }
    return _outputs(op, wide, op.reference(**wide))


@functools.lru_cache(maxsize=2)  # the seeds of one case: test files run all checks of a case before the next case
def _expected(op: CustomOp, case: Case, seed: int) -> tuple[torch.Tensor, ...]:
    """What `oracle` returns for a case, in the shapes that the op declares; callers must not change it."""
    want = oracle(op, case.arguments(seed))
    check_declared_results(op, case.arguments(seed), want)
    return want


def _check_on_xla(call: Callable[[dict], Any], op: CustomOp, case: Case, record: dict[str, Any]) -> None:
    record["recompiles"] = 0
    for seed in (0, 1):
        want, peers = _expected(op, case, seed), _peer_results(op, case, seed)
        on_xla = move_to_xla(case.arguments(seed))
        before = compilations()
        got = _outputs(op, on_xla, call(on_xla))
        _synchronize(got)
        if seed:
            record["recompiles"] = compilations() - before
        check_unchanged(
            op, case.arguments(seed), {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in on_xla.items()}
        )
        _note(record, _compare(op, case, tuple(t.cpu() for t in got), want, peers, device_type()))
    assert record["recompiles"] == 0, f"{op.name}: expected no compilation for new values, got {record['recompiles']}"


def _compare(
    op: CustomOp, case: Case, got: tuple, want: tuple, peers: tuple | None = None, device_type: str = "CPU"
) -> WorstElement:
    assert len(got) == len(want), f"{op.name}: expected {len(want)} results, got {len(got)}"
    names = output_names(op)
    where = [f"{op.name}[{case.name}]" + (f": {name}" if len(names) > 1 else "") for name in names]
    return max(
        worst_element(place, g, w, roundings=case.roundings_of(g, device_type), peer=p)
        for place, g, w, p in zip(where, got, want, peers or (None,) * len(want), strict=True)
    )


def _note(record: dict[str, Any], worst: WorstElement) -> None:
    """Keeps the worst of all comparisons of a check."""
    if worst.share >= record.get("share", 0.0):
        record.update(worst._asdict())


@functools.lru_cache(maxsize=2)
def _peer_results(op: CustomOp, case: Case, seed: int) -> tuple | None:
    if case.peer is None:
        return None
    results = case.peer(**case.arguments(seed))
    return (*(None for _ in op.schema.mutated), *(results if isinstance(results, tuple) else (results,)))


def _outputs(op: CustomOp, arguments: dict[str, Any], results: Any) -> tuple[torch.Tensor, ...]:
    results = results if isinstance(results, (tuple, list)) else () if results is None else (results,)
    return (*(arguments[a.name] for a in op.schema.mutated), *results)


def move_to_xla(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with their tensors on XLA's device."""
    import torch_xla

    moved = {n: v.to(torch_xla.device()) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    torch_xla.sync(wait=True)
    return moved


def _synchronize(tensors: tuple[torch.Tensor, ...]) -> None:
    import torch_xla

    torch_xla.sync(wait=True)


@contextmanager
def _recorded(op: CustomOp, case: Case, check: str) -> Iterator[dict[str, Any]]:
    """A record of the check: `test` is pytest's id of the test, `problem` the first line of the error."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
    record: dict[str, Any] = {"op": op.name, "case": case.name, "why": case.why, "check": check, "test": test}
    record["ok"] = False
    RECORDS.append(record)
    try:
        _expected(op, case, 0)  # first of all: what the op declares, so that a mistake there has one message
        yield record
        record["ok"] = True
    except Exception as raised:
        error = binding_error(op, str(raised)) or raised
        record["problem"] = str(error).strip().partition("\n")[0] or type(error).__name__
        # torch_xla would raise a handler's error again in the next test.
        drain_errors()
        if error is raised:
            raise
        raise error from None  # it says all that the other one does
