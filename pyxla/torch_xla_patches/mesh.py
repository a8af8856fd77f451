"""On a mesh of devices torch_xla's compiled functions confuse their inputs, and copy the arguments that they updated.

Without the first patch a compiled function treats a weight that was traced before as a constant, and a second module
computes with the first module's weights. Without the second patch each updated argument costs a graph and a copy.
Without the third patch a call that updates an argument returns only when its graph has run.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from functools import cache
from types import FrameType

import torch

from pyxla.torch_xla_patches import release
from pyxla.torch_xla_patches.compiled_graphs import before_each_run

# torch drops the registrations of a library when the library is garbage-collected.
_LIBRARY = torch.library.Library("aten", "IMPL")
# The functions of torch_xla and of AOTAutograd that give a graph's updated arguments their new values, and the name
# that the graph's results have there; `args` are its arguments, if it still has them.
_WRITE_BACK = {"optimized_mod": "res", "runtime_wrapper": "all_outs"}
# Of each of these functions, since the last run: the ids of the values that are also another result, or an argument.
_SHARED: dict[str, set[int]] = {}
# What a graph updated: the values before the last graph, and before the one before it. To release a donated buffer is
# to wait for the graph that took it.
_OLD_VALUES: list[torch.Tensor] = []
_OLDER_VALUES: list[torch.Tensor] = []


@cache
def apply_mesh_patches() -> None:
    """Applies the patches, for the process.

    Raises:
        PyxlaError: another version of torch or torch_xla. Without the patches numbers would be wrong.
    """
    release("mesh")
    _keep_tensor_ids()
    _copy_values_alone()
    _release_old_values_late()


def _keep_tensor_ids() -> None:
    """Lets torch.compile find which argument each input of a graph is, also for tensors that were traced before.

    torch_xla asks for the inputs of a graph and gets the data of each in a new tensor, with a tensor id. Under SPMD, if
    the data was traced before, that is the id of the new tensor of that time, which is no argument: torch_xla treats
    the input as a constant and uses this tensor's data in later calls. So the patch maps each id back to the first one.
    """
    from torch_xla import _XLAC

    inputs_of = _XLAC._get_tensors_xla_device_data_node
    first: dict[int, int] = {}

    def inputs_with_first_ids(tensors: list[torch.Tensor]) -> tuple[list[int], list[torch.Tensor]]:
        ids, inputs = inputs_of(tensors)
        ids = [first.get(number, number) for number in ids]
        first.update(zip(map(_XLAC._xla_get_tensor_id, inputs), ids, strict=True))
        return ids, inputs

    # torch_xla looks its functions up in its C++ module at each call.
    _XLAC._get_tensors_xla_device_data_node = inputs_with_first_ids


def _copy_values_alone() -> None:
    """Makes copy_ take new values directly, if they are computed and have the sharding of the old ones.

    The updated arguments of a compiled function get their values by copy_. torch_xla would annotate each with its
    sharding again, and so would have a graph to run, which copies the whole tensor.
    """
    from torch_xla import _XLAC

    def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if (source.device, source.dtype, source.shape) == (target.device, target.dtype, target.shape):
            sharding = _XLAC._get_xla_sharding_spec(source)
            is_alike = sharding and sharding == _XLAC._get_xla_sharding_spec(target)
            is_alike = is_alike and not _XLAC._check_tensor_need_materialization([source])[0]
            caller = sys._getframe(1)
            is_written_back = caller.f_code.co_name in _WRITE_BACK
            if is_alike and not (is_written_back and _XLAC._xla_get_tensor_id(source) in _shared_in(caller)):
                # Clears the sharding of the old value: otherwise torch_xla would annotate the new value with it.
                _XLAC._xla_clear_sharding(target)
                if not is_written_back:
                    return source.clone()
                _OLDER_VALUES.clear()
                _OLD_VALUES.append(target)
                # Nobody else has the source. A clone would be computed at the next sync, by a copy of the tensor.
                return source
        # As torch_xla's own copy does.
        return torch.ops.aten._copy_from(source, target, non_blocking)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        _LIBRARY.impl("copy", copy, "XLA")


def _shared_in(caller: FrameType) -> set[int]:
    """The ids of the tensors that are more than one result of the caller's graph, or also an argument.

    A function may return what it writes to an argument, or write it to two: torch_xla then has one tensor for both. Who
    takes its data would see it change when the other is updated.
    """
    from torch_xla import _XLAC

    def ids(tensors: Iterable[object]) -> list[int]:
        on_xla = [t for t in tensors if isinstance(t, torch.Tensor) and t.device.type == "xla"]
        return list(map(_XLAC._xla_get_tensor_id, on_xla))

    name = caller.f_code.co_name
    if name not in _SHARED:
        values = caller.f_locals
        results = Counter(ids(values[_WRITE_BACK[name]]))
        _SHARED[name] = {one for one, count in results.items() if count > 1}.union(ids(values.get("args", ())))
    return _SHARED[name]


def _release_old_values_late() -> None:
    """Keeps the values that a compiled function updated until the next graph is launched.

    A donated argument gets its new value when the call returns. To release the old buffer then may take until the graph
    has run on each device, and the host could not prepare the next step meanwhile. So they are released when the next
    graph that updates something has been launched: the host is one graph ahead of the devices. A donated buffer's
    memory is that of the new value; one that is updated and not donated keeps its old value's memory until then.
    """

    def is_launched_next(_: list[torch.Tensor]) -> None:
        _SHARED.clear()
        _OLDER_VALUES.extend(_OLD_VALUES)
        _OLD_VALUES.clear()

    before_each_run(is_launched_next)
