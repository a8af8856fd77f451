"""The layers of what a user would use instead: eager torch, torch.compile with inductor, other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pyxla.benchmark import Arguments, Bench
from pyxla.benchmark.check import Expected
from pyxla.benchmark.layers import Single, Skipped
from pyxla.torch_ops.custom_op import CustomOp

EAGER, COMPILED = "torch", "torch.compile"


def peer_names(bench: Bench) -> list[str]:
    """The peers of a bench, as the table names them."""
    return [*([EAGER, COMPILED] if bench.peer else []), *bench.others]


def peer_layer(
    op: CustomOp, bench: Bench, name: str, arguments: Arguments, device: Any, expected: Expected
) -> Single | Skipped:
    """The layer of a peer, with its own copies of the arguments; a peer that fails or does other work is skipped."""
    if name == COMPILED and bench.reads_lengths:
        return Skipped(name, "the peer reads lengths on the host: not one graph")
    if device.peers is None or (name in bench.others and device.kind != "cuda"):
        return Skipped(name, device.without_peers or "for CUDA only")
    own = {n: device.copy(v) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    try:
        call = _prepared(bench, name, own)
        results = call()
        results = results if isinstance(results, tuple) else () if results is None else (results,)
        expected.compare_peer(results, [own[argument.name] for argument in op.schema.mutated])
    except ImportError as error:
        return Skipped(name, f"not installed: {error}")
    except Exception as error:
        # Any error: this is not a test of the peer.
        return Skipped(name, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    return Single(name, "called by Python", device, call)


def _prepared(bench: Bench, name: str, arguments: Arguments) -> Callable[[], Any]:
    if name in bench.others:
        return bench.others[name](**arguments)
    peer = torch.compile(bench.peer, dynamic=False) if name == COMPILED else bench.peer
    return lambda: peer(**arguments)
