"""What torch knows of an op besides how to run it."""

import torch

import pyxla

LSE = pyxla.find_op("paged_attention_lse")


def test_torch_s_schema_names_the_results():
    assert LSE.schema.result_names == ["out", "lse"]
    assert str(torch.ops.xla_gpu.paged_attention_lse.default._schema).endswith(" -> (Tensor out, Tensor lse)")
