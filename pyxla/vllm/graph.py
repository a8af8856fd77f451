"""The two ways to XLA: traced in each call, or traced once for each shape and then run as a graph.

`pyxla.nn.in_mode` goes through torch.compile, whose tracing takes seconds for each of a server's many shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pyxla.torch_xla_patches.traced_graph import trace_graph


def in_mode(function: Callable, mode: str) -> Callable:
    """The function for a mode.

    Args:
        function: takes XLA tensors, and other values that can be keys of a dict; returns XLA tensors and None in tuples
            of any depth. It may update its arguments in place, and nothing else.
        mode: "direct", traced in each call: the caller syncs. "compile", traced at the first call with such shapes and
            other values, whose graph the other calls run. What the function reads besides its arguments, such as a
            model's weights, stays as it was then.
    """
    return function if mode == "direct" else _Graphs(function)


class _Graphs:
    def __init__(self, function: Callable):
        self._function = function
        self._graphs: dict[tuple, Callable] = {}

    def __call__(self, *arguments: Any) -> Any:
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        key = tuple((a.shape, a.dtype) if isinstance(a, torch.Tensor) else a for a in arguments)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._trace(arguments, tensors)
        return graph(tensors)

    def _trace(self, arguments: tuple, tensors: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], Any]:
        structure = None
        # The graph outlives the tensors, so it does not keep them.
        places = [torch.Tensor if isinstance(argument, torch.Tensor) else argument for argument in arguments]

        def flat(*given: torch.Tensor) -> list:
            nonlocal structure
            left = iter(given)
            results = self._function(*(next(left) if place is torch.Tensor else place for place in places))
            leaves, structure = pytree.tree_flatten(results)
            return leaves

        run = trace_graph(flat, tensors)
        assert structure is not None

        def call(given: list[torch.Tensor]) -> Any:
            results = run(*given)
            return pytree.tree_unflatten(results if isinstance(results, (list, tuple)) else [results], structure)

        return call
