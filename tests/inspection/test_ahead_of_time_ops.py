"""Every op, compiled by XLA:CUDA for an H200 that is not present: one call, and no copy."""

import importlib

import pytest
import torch
import torch_xla
import torch_xla.runtime
from pyxla_kernels._testing.custom_calls import to_xla

import pyxla
from pyxla import testing
from tests.layers.test_imports import LIBRARIES

pytestmark = pytest.mark.skipif(
    torch_xla.runtime.device_type() != "CPU", reason="compiles for a GPU that is not here: on the CPU"
)


def cases():
    modules = (importlib.import_module(f"pyxla_kernels.{folder}.{folder}") for folder in LIBRARIES)
    declared = (value for module in modules for value in vars(module).values() if isinstance(value, pyxla.CustomOp))
    for op in declared:
        for index, case in enumerate(testing.cases_of(op)):
            marks = [pytest.mark.slow] if index else []
            yield pytest.param(op.name, case, id=f"{op.name}-{case.name}", marks=marks)


@pytest.mark.parametrize(("name", "case"), list(cases()))
def test_compiled_for_an_h200(name, case):
    op = pyxla.find_op(name)
    arguments = to_xla(case.arguments())
    with pyxla.inspecting() as seen:
        results = op(**arguments)
        torch_xla.sync(wait=True)
    results = results if isinstance(results, tuple) else (results,)
    (module,) = pyxla.compiled_for(seen, "H200").modules
    calls = [call for call in module.calls if call.target == op.target]
    changed = [arguments[slot.name] for slot in op.schema.mutated]
    if not any(t.numel() for t in (*changed, *results) if isinstance(t, torch.Tensor)):
        assert not calls  # XLA:CUDA omits calls without elements
        return
    (call,) = calls
    assert call.attributes == seen.modules[0].calls[0].attributes
    assert len(call.aliases) == len(module.aliases) == len(changed)
    # Two operands of the same size are updated in place: torch_xla may swap their buffers.
    if len(changed) < 2:
        assert not [copy for copy in module.copies if copy.size]
