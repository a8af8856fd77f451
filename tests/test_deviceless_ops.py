"""Every op, compiled by XLA:CUDA for an H200 that is not here: the call is there once, and nothing is copied."""

import importlib

import pytest
import torch
import torch_xla
import torch_xla.runtime
from pyxla_kernels.common.custom_calls import to_xla

import pyxla
from pyxla.op import NAMESPACE
from tests.test_layers import OPS

pytestmark = pytest.mark.skipif(
    torch_xla.runtime.device_type() != "CPU", reason="compiles for a GPU that is not here: on the CPU"
)

# Ops that share a folder -> where their cases are.
SHARING = {
    "attention_to_qkv": {"attention_to_qkv": "cases.CASES", "attention_to_query": "query_cases.QUERY_CASES"},
    "paged_attention": {"paged_attention": "cases.CASES", "paged_attention_lse": "cases.LSE_CASES"},
    "rotary_embedding": {"rotary_embedding": "cases.CASES", "rotary_embedding_inplace": "cases.CASES"},
}


def cases():
    for folder in OPS:
        for name, which in SHARING.get(folder, {folder: "cases.CASES"}).items():
            module, attribute = which.split(".")
            for case in getattr(importlib.import_module(f"pyxla_kernels.{folder}.{module}"), attribute):
                yield pytest.param(name, case, id=f"{name}-{case.name}")


@pytest.mark.parametrize(("name", "case"), list(cases()))
def test_compiled_for_an_h200(name, case):
    op = pyxla.find_op(name)
    arguments = to_xla(case.arguments())
    with pyxla.inspecting() as seen:
        results = op(**arguments)
        torch_xla.sync(wait=True)
    results = results if isinstance(results, tuple) else (results,)
    (module,) = pyxla.compiled_for(seen, "H200").modules
    calls = [call for call in module.calls if call.target == f"{NAMESPACE}_{name}"]
    changed = [arguments[slot.name] for slot in op.schema.mutated]
    if not any(t.numel() for t in (*changed, *results) if isinstance(t, torch.Tensor)):
        assert not calls  # XLA:CUDA leaves out what has no element
        return
    (call,) = calls
    assert call.attributes == seen.modules[0].calls[0].attributes
    assert len(call.aliases) == len(module.aliases) == len(changed)
    # Two operands of one size that are updated in place: torch_xla may swap their buffers.
    if len(changed) < 2:
        assert not [copy for copy in module.copies if copy.size]
