"""A function that torch.compile made with torch_xla's backend keeps its graphs in a closure.

It runs them without looking into torch_xla's cache again, and offers no way to drop them. If the closure is emptied,
XLA compiles the function anew, and torch.compile does not trace it again.

It has no hook before a run, and a run in a forked child never ends.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from pyxla.torch_xla_patches import release


def graphs_of_compiled_functions() -> list[dict]:
    """For each compiled function of this process, its graphs by the values of its symbolic sizes."""
    from torch_xla._dynamo import dynamo_bridge

    release("compiled_graphs")
    constants = dynamo_bridge.extract_internal.__code__.co_consts
    code = next(c for c in constants if getattr(c, "co_name", "") == "optimized_mod")
    place = code.co_freevars.index("sym_constants_to_graph_vars")
    # Otherwise those from before a gc.freeze(), as vLLM's worker calls it, are not found.
    gc.unfreeze()
    functions = [f for f in gc.get_referrers(code) if getattr(f, "__code__", None) is code]
    return [f.__closure__[place].cell_contents for f in functions]


def before_each_run(action: Callable[[list[torch.Tensor]], None]) -> None:
    """Calls the action with the inputs of every compiled graph of this process, each time before the graph runs."""
    from torch_xla import _XLAC

    release("compiled_graphs")
    run = _XLAC._run_cached_graph

    def run_after_action(graph_hash: bytes, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        action(inputs)
        return run(graph_hash, inputs)

    # torch_xla looks its functions up in its C++ module at each call.
    _XLAC._run_cached_graph = run_after_action
