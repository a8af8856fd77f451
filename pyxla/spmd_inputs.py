"""What torch_xla's compiled functions get wrong about their inputs under SPMD, mended for the process.

torch_xla looks its functions up in its C++ module at each call, so they can be replaced there by ones that do more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import torch

# A tensor's graph that is nothing but its data, said once more to be sharded as it is.
_ANNOTATED_DATA = re.compile(
    r"IR \{\n +%0 = \S+ xla::device_data\(\).*\n +%1 = \S+ xla::custom_sharding\(%0\).*ROOT=0\n\}\n"
)


@cache
def mend_compiled_inputs() -> None:
    """Lets a compiled function under SPMD take its inputs for what they are."""
    # First, since it asks torch_xla itself for a tensor's data.
    _leave_updated_inputs()
    _keep_tensor_ids()


def _keep_tensor_ids() -> None:
    """Lets torch.compile tell which argument each input of a graph is, also of tensors that were traced before.

    torch_xla asks for the inputs of a graph and gets each one's data in a new tensor. Under SPMD, where the data was
    traced before, what it gets with it is the number of the new tensor of that time, which is no argument's: it takes
    the input for a constant and goes on with this tensor's data in later calls. So numbers are traced back here.
    """
    from torch_xla import _XLAC

    inputs_of = _XLAC._get_tensors_xla_device_data_node
    first: dict[int, int] = {}

    def inputs_with_first_ids(tensors: list[torch.Tensor]) -> tuple[list[int], list[torch.Tensor]]:
        ids, inputs = inputs_of(tensors)
        ids = [first.get(number, number) for number in ids]
        first.update(zip(map(_XLAC._xla_get_tensor_id, inputs), ids, strict=True))
        return ids, inputs

    _XLAC._get_tensors_xla_device_data_node = inputs_with_first_ids


def _leave_updated_inputs() -> None:
    """Saves the copy of each input that a compiled function has updated in place.

    torch_xla makes the result the input's new value. Under SPMD it puts an annotation of how it is sharded around it,
    which the result has anyway; for the next call it would run that as a graph of its own, which copies all of it.
    """
    from torch_xla import _XLAC

    check, data_of = _XLAC._check_tensor_need_materialization, _XLAC._get_tensors_xla_device_data_node

    def needs_materialization(tensors: list[torch.Tensor]) -> list[bool]:
        needed = check(tensors)
        return [need and not _take_data(tensor, data_of) for tensor, need in zip(tensors, needed, strict=True)]

    _XLAC._check_tensor_need_materialization = needs_materialization


def _take_data(tensor: torch.Tensor, data_of: Callable) -> bool:
    """Whether the tensor is data that was annotated with its own sharding; it is the data itself from then on."""
    from torch_xla import _XLAC

    if not _ANNOTATED_DATA.fullmatch(_XLAC._get_xla_tensors_text([tensor])):
        return False
    _, (data,) = data_of([tensor])
    if _XLAC._get_xla_sharding_spec(data) != _XLAC._get_xla_sharding_spec(tensor):
        return False
    _XLAC._replace_xla_tensor(tensor, data)
    return True
