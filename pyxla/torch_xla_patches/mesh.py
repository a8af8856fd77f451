"""On a mesh of devices torch_xla's compiled functions confuse their inputs, and copy what they have updated.

Without the first patch a compiled function takes a weight that was traced before for a constant, and a second module
computes with the first one's weights. Without the second each updated argument costs a graph and a copy.
"""

from __future__ import annotations

import warnings
from functools import cache

import torch

from pyxla.torch_xla_patches import require_known_versions

# torch forgets what a library registered when that is collected.
_LIBRARY = torch.library.Library("aten", "IMPL")


@cache
def apply_mesh_patches() -> None:
    """Applies both patches, for the process.

    Raises:
        PyxlaError: another version of torch or torch_xla. Without the patches numbers would be wrong.
    """
    require_known_versions("mesh")
    _keep_tensor_ids()
    _copy_values_alone()


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

    # torch_xla looks its functions up in its C++ module at each call.
    _XLAC._get_tensors_xla_device_data_node = inputs_with_first_ids


def _copy_values_alone() -> None:
    """Lets copy_ take values as they are, if they are computed and sharded as the old ones.

    That is how a compiled function's updated arguments get their values. torch_xla says once more of each that it is
    sharded as it was, and so has a graph to run, for which it copies the whole tensor.
    """
    from torch_xla import _XLAC

    def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if (source.device, source.dtype, source.shape) == (target.device, target.dtype, target.shape):
            sharding = _XLAC._get_xla_sharding_spec(source)
            is_alike = sharding and sharding == _XLAC._get_xla_sharding_spec(target)
            if is_alike and not _XLAC._check_tensor_need_materialization([source])[0]:
                # Of the value that is given up: whose place it takes would be annotated with it.
                _XLAC._xla_clear_sharding(target)
                return source.clone()
        # What torch_xla's own does.
        return torch.ops.aten._copy_from(source, target, non_blocking)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        _LIBRARY.impl("copy", copy, "XLA")
