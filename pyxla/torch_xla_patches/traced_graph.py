"""torch_xla makes a graph that runs without being traced again for torch.compile alone, out of what Dynamo traced.

Its function for that only calls what it is given, so a module around any function does. Tracing then takes a fraction
of the time: no bytecode is read, and no operation is traced three times.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyxla.errors import PyxlaError, mismatch
from pyxla.torch_xla_patches import release
from pyxla.torch_xla_patches.fallback_counters import FallbackCounter

# The tensors that the function has updated in place so far, while a graph is being traced; else None.
_updated: list[torch.Tensor] | None = None


class _Function(torch.nn.Module):
    """What torch_xla takes for the module that Dynamo made; it calls it again when it has lost the graph."""

    def __init__(self, function: Callable[..., list], tensors: Sequence[torch.Tensor]):
        super().__init__()
        self._function, self.xla_args = function, tensors

    def forward(self, *tensors: torch.Tensor) -> list:
        global _updated
        on_cpu, _updated = FallbackCounter(), []
        try:
            results = self._function(*tensors)
            others = [tensor for tensor in _updated if all(tensor is not given for given in tensors)]
            names = sorted(on_cpu.counts())
        finally:
            on_cpu.stop()
            _updated = None
        if others:
            got = "one of another tensor: " + ", ".join(str(list(tensor.shape)) for tensor in others)
            raise PyxlaError(mismatch("trace_graph", "function", "updates of its arguments alone", got))
        if names:
            raise PyxlaError(mismatch("trace_graph", "function", "operations that XLA has", ", ".join(names)))
        return results


def trace_graph(function: Callable[..., list], tensors: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """Traces a function once and compiles its graph, without running it.

    Args:
        function: takes the tensors and returns a list of XLA tensors and None. It may update the tensors in place. What
            else it reads, such as weights, the graph keeps as it is now.
        tensors: XLA tensors, all different.

    Returns:
        Takes other tensors of these shapes, runs the graph, updates them as the function would, and returns what the
        function returns: of a list of one element, that one.

    Raises:
        PyxlaError: the function updates another tensor, or runs an operation on the CPU, which reads values too.
    """
    import torch_xla
    from torch_xla._dynamo import dynamo_bridge

    release("traced_graph")
    # Otherwise torch_xla does not recognize a tensor that has not been computed.
    torch_xla.sync()
    model = _Function(function, tuple(tensors))
    run = dynamo_bridge.extract_internal(model)
    model.xla_args = ()
    _release_traced(run)
    return run


def _release_traced(run: Callable[..., Any]) -> None:
    """Lets go of the traced tensors. torch_xla keeps them as long as the graph, and reads their number alone."""
    graphs = inspect.getclosurevars(run).nonlocals["sym_constants_to_graph_vars"]
    for key, (sharding, results, name, updates, nones, inputs, handler, updated) in graphs.items():
        handler.trace_inputs = handler.trace_outputs = handler.deduped_trace_outputs = ()
        results, updated = (None,) * len(results), (None,) * len(updated)
        graphs[key] = sharding, results, name, updates, nones, inputs, handler, updated


def is_traced() -> bool:
    """Whether the function of a `trace_graph` is running."""
    return _updated is not None


def donate(tensor: torch.Tensor) -> None:
    """Lets a graph that is being traced or compiled write over a tensor that it updates, which it would copy first."""
    # Not rank 0: torch_xla shares the buffers of equal scalars, and the next one would find a deleted buffer.
    if tensor.device.type != "xla" or not tensor.dim():
        return
    if _updated is not None and _owns_buffer(tensor):
        _updated.append(tensor)
    torch.ops.pyxla.donate(tensor)


def _donate(tensor: torch.Tensor) -> torch.Tensor:
    from torch_xla import _XLAC

    if _owns_buffer(tensor):
        _XLAC._set_buffer_donation(tensor, True)
    return tensor


def _owns_buffer(tensor: torch.Tensor) -> bool:
    """Not so a result inside the graph, and a clone: it still has the buffer of its origin, which the caller keeps."""
    from torch_xla import _XLAC

    if _XLAC._check_tensor_need_materialization([tensor])[0]:
        return False
    return _XLAC._xla_get_tensor_id(tensor) in _XLAC._get_tensors_xla_device_data_node([tensor])[0]


# An operator, so that it is in the graph that Dynamo traces, and runs when torch_xla compiles that with XLA's tensors.
_LIBRARY = torch.library.Library("pyxla", "FRAGMENT")
_LIBRARY.define("donate(Tensor tensor) -> Tensor")
_LIBRARY.impl("donate", _donate, "XLA")
_LIBRARY.impl("donate", lambda tensor: tensor, "CompositeExplicitAutograd")
