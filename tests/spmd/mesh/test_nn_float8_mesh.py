"""XlaGpuAttention over a float8 PagedKVCache on a mesh: each device has its heads, their cache and their scales."""

import re

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs

import pyxla
from pyxla.nn import in_mode
from tests.nn_served import KV_HEADS, D, Served

MESH = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
SCALES = torch.tensor([[[0.25, 3.0], [0.02, 0.7]], [[17.0, 0.01], [0.3, 0.09]]])
EXCHANGES = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter")


@pytest.mark.parametrize("mode", ["direct", "compile"])
def test_each_device_has_the_scales_of_its_heads(mode):
    torch._dynamo.reset()
    served = Served(mode, dtype=torch.float8_e4m3fn, scales=SCALES, mesh=MESH)
    first = served.open()
    assert served.step([(first, 6)])[0] < 1e-5
    child = served.fork(first)
    worst, arguments = served.step([(first, 2), (child, 3)])
    assert worst < 1e-5
    seen = pyxla.inspect(in_mode(served.trace, mode), *arguments)
    (module,) = [module for module in seen.modules if module.calls]
    for op, cache, scales in (("reshape_and_cache", 2, 4), ("paged_attention", 1, -1)):
        calls = [call for call in module.calls if call.target == f"xla_gpu_{op}"]
        assert len(calls) == 2
        for call in calls:
            assert call.operands[cache].shape.startswith(f"f8e4m3fn[2,16,4,{KV_HEADS // 2},{D}]")
            assert call.operands[scales].shape.startswith(f"f32[2,{KV_HEADS // 2}]")
    assert not [copy for copy in module.copies if copy.call]
    assert not EXCHANGES.search(module.after)
